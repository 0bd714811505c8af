"""What results were made with, in sixteen letters: so that a file of results is not continued with another model."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from deepinfer.config import read_config
from deepinfer.folders import is_plain_file, read
from deepinfer.loading.checkpoint import INDEX

_WHOLE = ("config.json", "tokenizer.json", INDEX)
_SAMPLES, _SAMPLE = 4, 16384
"""Pieces of a shard that are read, and their bytes: two models of one shape differ in any of them."""


def of_options(args: argparse.Namespace) -> str:
    """The fingerprint of the model that a command line opens; see `fingerprint`."""
    return fingerprint(
        args.model,
        load_format=args.load_format,
        engram_rows=args.engram_rows,
        truncation=args.truncation,
        gemm=args.gemm,
    )


def fingerprint(
    folder: Path,
    *,
    load_format: str = "auto",
    engram_rows: int | None = None,
    truncation: str = "off",
    gemm: str = "exact",
) -> str:
    """16 hex digits that change with a checkpoint, and with the options that change what it says.

    Of config.json, tokenizer.json and the index every byte counts; of a shard its name, its size and a few pieces of
    it, so that hundreds of gigabytes cost no more than a moment. Where the folder lies does not count, nor what
    computes: device, backend and batch change answers by rounding at most. (Made weights, for trials, are a GPU's or a
    processor's own all the same.)

    Raises:
        ConfigError: there is no config.json, or none that can be used.
    """
    read_config(folder)
    digest = hashlib.sha256(json.dumps([load_format, engram_rows, truncation, gemm]).encode())
    for name in _WHOLE:
        digest.update(json.dumps([name, _hash(folder / name)]).encode())
    for shard in sorted(folder.glob("*.safetensors")) if load_format == "auto" else []:
        digest.update(json.dumps([shard.name, *_pieces(shard)]).encode())
    return digest.hexdigest()[:16]


def _hash(file: Path) -> str:
    """Of what is not there or cannot be read "": whoever opens the model tells it."""
    try:
        return hashlib.sha256(read(file)).hexdigest()
    except OSError:
        return ""


def _pieces(shard: Path) -> Iterator[int | str]:
    """The size, and hashes of pieces from the first to the last."""
    if not is_plain_file(shard):  # a pipe would be waited for
        yield ""
        return
    try:
        with shard.open("rb") as file:
            size = file.seek(0, 2)
            yield size
            for number in range(_SAMPLES):
                file.seek(max(0, size - _SAMPLE) * number // (_SAMPLES - 1))
                yield hashlib.sha256(file.read(_SAMPLE)).hexdigest()
    except OSError:
        yield ""
