"""Writing a checkpoint: shards with their index, in a folder that appears when it is whole."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from deepinfer.errors import DeepInferError, UsageError, unwritable
from deepinfer.loading.checkpoint import INDEX
from deepinfer.packages import need


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which takes the place of `folder` when the block ends well, and is removed otherwise.

    Raises:
        UsageError: `folder` holds something, is no folder, or its name leads through what is none.
        DeepInferError: it cannot be made or filled on this machine.
    """
    folder = folder.absolute()
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(
                f"{folder} is there already" + (" and is not empty" if folder.is_dir() else " and is no folder"),
                next_step="name another folder, or remove this one",
            )
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise unwritable(f"{folder} cannot be written", problem) from problem
    try:
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            yield aside
            readable = ~_umask()  # safetensors and mkdtemp keep what they make to the user
            for file in aside.iterdir():
                file.chmod(0o666 & readable)
            aside.chmod(0o777 & readable)
            aside.rename(folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as problem:
        raise DeepInferError(
            f"{folder} cannot be written: {problem.strerror or problem}",
            next_step="make room, or name a folder on a file system with room that you may write to",
        ) from problem


@contextlib.contextmanager
def system_errors(path: Path) -> Iterator[None]:
    """Errors of the system that the libraries raise as types of their own, from writing `path`, as OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as problem:  # safetensors has a type of its own, tokenizers raises plain Exception
        found = re.search(r"\(os error (\d+)\)", str(problem))
        if not found:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1])), str(path)) from problem


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_shards(folder: Path, tensors: Iterable[tuple[str, torch.Tensor]], *, shards: int) -> None:
    """Write tensors into `shards` files, each a run of the given order, and the index of all."""
    save_file = need("safetensors.torch", "writing a checkpoint").save_file
    everything = list(tensors)
    size = -(-len(everything) // shards)
    weight_map: dict[str, str] = {}
    for number in range(shards):
        part = dict(everything[number * size : (number + 1) * size])
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        with system_errors(folder / file):
            save_file(part, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    total = sum(tensor.nbytes for _, tensor in everything)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")
