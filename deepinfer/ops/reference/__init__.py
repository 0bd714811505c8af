"""The kernels in plain PyTorch: right by being short. Factories take and return what kernel_spec says."""
