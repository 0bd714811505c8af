"""The vendor's own DeepGEMM."""

__version__ = "2.0.0"
