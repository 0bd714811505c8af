"""What results were made with, in sixteen letters: so that a file of results is not continued with another model."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from deepinfer import platform
from deepinfer.cli.model_options import refused_as_usage
from deepinfer.config import read_config
from deepinfer.folders import is_plain_file, read
from deepinfer.loading.checkpoint import INDEX

_WHOLE = ("config.json", "tokenizer.json", INDEX)
_SAMPLES, _SAMPLE = 4, 16384
"""Pieces of a shard that are read, and their bytes: two models of one shape differ in any of them."""


def of_options(args: argparse.Namespace) -> str:
    """The fingerprint of the model that a command line opens; see `fingerprint`.

    Raises:
        UsageError, DeepInferError: dummy weights are to be made where they cannot be.
    """
    return fingerprint(
        args.model,
        load_format=args.load_format,
        engram_rows=args.engram_rows,
        truncation=args.truncation,
        gemm=args.gemm,
        makers=_makers(args.device, args.engram_device) if args.load_format == "dummy" else (),
    )


def _makers(device: str | None, engram_device: str | None) -> tuple[str, ...]:
    """What draws dummy weights, and what draws their n-gram tables."""
    from deepinfer.engine.placement import device_of, tables_on

    with refused_as_usage():
        where = device_of(device)
        places = (where, tables_on(engram_device, where))
    return tuple("cpu" if place.type == "cpu" else _gpu(place.index) for place in places)


def _gpu(index: int) -> str:
    """PyTorch deals random numbers out to as many threads as a GPU runs at once."""
    gpu = platform.detect().gpus[index]
    return f"{gpu.name}, {gpu.sm_count} multiprocessors"


def fingerprint(
    folder: Path,
    *,
    load_format: str = "auto",
    engram_rows: int | None = None,
    truncation: str = "off",
    gemm: str = "exact",
    makers: Sequence[str] = (),
) -> str:
    """16 hex digits that change with a checkpoint, and with the options that change what it says.

    Of config.json, tokenizer.json and the index every byte counts; of a shard its name, its size and a few pieces of
    it, so that hundreds of gigabytes cost no more than a moment. Where the folder lies does not count, nor what
    computes: device, backend and batch change answers by rounding at most. Dummy weights are other ones on each kind of
    GPU, and on processors, whose kinds round a few of them otherwise; so what makes them counts.

    Args:
        makers: what makes dummy weights.

    Raises:
        ConfigError: there is no config.json, or none that can be used.
    """
    read_config(folder)
    digest = hashlib.sha256(json.dumps([load_format, engram_rows, truncation, gemm, *makers]).encode())
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
