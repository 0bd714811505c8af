"""Writing a checkpoint: shards with their index, in a folder that appears when it is whole."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from deepinfer.errors import DeepInferError, UsageError, unwritable
from deepinfer.folders import is_text
from deepinfer.loading.checkpoint import INDEX
from deepinfer.packages import need


@contextlib.contextmanager
def new_folder(folder: Path, *, last: str) -> Iterator[Path]:
    """A folder to fill, which takes the place of `folder` when the block ends well, and is removed otherwise.

    An empty folder that is there already stays, because it may be a mount point, or the one that a shell stands in:
    its files are written into a hidden folder within it, and then take their places one by one.

    Args:
        last: the file without which the others are nothing: it is the last to take its place.

    Raises:
        UsageError: `folder` holds something, is no folder, its name leads through what is none, or another process
            was faster.
        DeepInferError: it cannot be made or filled on this machine.
    """
    folder = folder.absolute()
    if not is_text(folder):
        raise UsageError(f"{str(folder)!a} is no UTF-8", next_step="name another folder")
    try:
        if folder.is_symlink():
            folder = Path(os.path.realpath(folder))
            if folder.is_symlink():
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(folder))
        there = folder.exists()
        if there:
            _check_empty(folder)
        else:
            folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise unwritable(f"{folder} cannot be written", problem) from problem
    try:
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder if there else folder.parent))
        try:
            yield aside
            usual = _usual_mode(aside)  # safetensors and mkdtemp keep what they make to the user
            for file in aside.iterdir():
                file.chmod(usual & 0o666)
            if there:
                _move_into(folder, aside, last)
            else:
                aside.chmod(usual)
                aside.rename(folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as problem:
        if problem.errno in (errno.EEXIST, errno.ENOTEMPTY):
            raise UsageError(
                f"{folder} is not empty any more",
                cause="another process has written into it meanwhile, perhaps the same command",
                next_step="use what is there now, or name another folder",
            ) from problem
        raise DeepInferError(
            f"{folder} cannot be written: {problem.strerror or problem}",
            next_step="make room, or name a folder on a file system with room that you may write to",
        ) from problem


def _check_empty(folder: Path) -> None:
    try:
        held = sorted(entry.name for entry in folder.iterdir())
    except NotADirectoryError:
        raise UsageError(f"{folder} is there already and is no folder", next_step="name another folder") from None
    if held:
        raise UsageError(
            f"{folder} is there already and is not empty: it has {', '.join(held[:3])}{', …' if held[3:] else ''}",
            next_step="name another folder, or remove what is in this one",
        )


def _move_into(folder: Path, aside: Path, last: str) -> None:
    """Files from `aside` take their places in `folder`, or none does. FileExistsError: something is in a place."""
    names = sorted((entry.name for entry in aside.iterdir()), key=lambda name: (name == last, name))
    taken: list[Path] = []
    try:
        for name in names:
            place = folder / name
            place.touch(exist_ok=False)  # of two processes one gets it
            taken.append(place)
            (aside / name).replace(place)
    except BaseException:
        for place in taken:
            place.unlink(missing_ok=True)
        raise


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


def _usual_mode(folder: Path) -> int:
    """What a new folder may be used for by whom. To ask for the umask is to set it, for every thread of the process."""
    made = folder / ".mode"
    made.mkdir()
    mode = made.stat().st_mode & 0o777
    made.rmdir()
    return mode


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
