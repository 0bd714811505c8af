"""What `deepinfer env` reports: the machine, and each part that the engine may use, examined in its own process."""

from deepinfer.environment.report import collect, render

__all__ = ["collect", "render"]
