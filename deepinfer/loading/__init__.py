"""Checkpoints: what is in them, and how their formats are read."""
