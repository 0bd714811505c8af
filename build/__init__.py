"""The build system: vendor image in, verified DeepInfer image out. Driven by tasks.py and matrix.yaml."""
