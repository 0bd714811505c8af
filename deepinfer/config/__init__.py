"""The model's configuration: config.json as frozen dataclasses, validated as a whole.

`read_config(folder)` reads it; every problem is told at once.
"""

from __future__ import annotations

from deepinfer.config.model import (
    FP8_BLOCK,
    Attention,
    Draft,
    Engram,
    HyperConnections,
    Indexer,
    ModelConfig,
    Moe,
    Rope,
    Special,
    Vision,
    Yarn,
)
from deepinfer.config.parse import parse_config, read_config

__all__ = [
    "FP8_BLOCK",
    "Attention",
    "Draft",
    "Engram",
    "HyperConnections",
    "Indexer",
    "ModelConfig",
    "Moe",
    "Rope",
    "Special",
    "Vision",
    "Yarn",
    "parse_config",
    "read_config",
]
