"""A vendor's engine as far as an image can tell: a version, a command, and a DeepGEMM of its own inside."""

__version__ = "0.32.0"
