"""A checkpoint's files: every tensor found, examined before any is read, and handed out once (model_spec 2).

Tensors are memory-mapped: reading one costs no more host memory than itself, and nothing until it is touched.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from deepinfer.config import ModelConfig
from deepinfer.errors import CheckpointError
from deepinfer.folders import is_folder, is_plain_file, is_there, read
from deepinfer.json_text import strict_json
from deepinfer.loading.inventory import OPTIONAL_PREFIXES, TensorSpec, inventory
from deepinfer.packages import need

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
PREFIX = "model."
_DTYPES = {
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I8": torch.int8,
}
_SHOWN = 12
"""Names of a kind that an error lists before it counts the rest."""


@dataclass(frozen=True)
class Place:
    """Where a tensor is: its file, and its name there, with or without `model.`."""

    file: str
    name: str


class Checkpoint:
    """The tensors of a folder that fit a configuration.

    Example:
        with Checkpoint.open(folder, config) as checkpoint:
            weight = checkpoint.take("norm.weight")
            ...
            checkpoint.finish()
    """

    def __init__(self, folder: Path, places: Mapping[str, Place], specs: Mapping[str, TensorSpec]) -> None:
        self.folder = folder
        self.places = places
        self._specs = specs
        self.left = set(places)
        self._files: dict[str, Any] = {}
        self._stack = ExitStack()

    @classmethod
    def open(cls, folder: Path, config: ModelConfig) -> Checkpoint:
        """Find and examine every tensor; none is read.

        Raises:
            CheckpointError: files or tensors are missing, too many, damaged, or of a wrong shape or dtype: all named.
        """
        named = _index(folder)
        found = _Found(folder, named)
        specs = inventory(config)
        problems = found.problems + found.against(specs)
        if problems:
            raise CheckpointError(
                f"the checkpoint in {folder} does not fit its config.json:\n"
                + "\n".join(f"  - {problem}" for problem in problems),
                cause="a download that did not end, or files of another model",
                next_step="fetch the files that are named again, and compare config.json with theirs",
            )
        return cls(folder, {name: place for name, (place, _) in found.tensors.items()}, specs)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._files.clear()

    def __contains__(self, name: str) -> bool:
        return name in self.places

    def take(self, name: str) -> torch.Tensor:
        """A tensor, mapped from its file. Each can be taken once; a second time is a mistake of the caller's.

        Raises:
            CheckpointError: its file is not as it was when it was examined.
        """
        self.left.remove(name)
        place, library = self.places[name], _library()
        try:
            if place.file not in self._files:
                self._files[place.file] = self._stack.enter_context(library.safe_open(self.folder / place.file, "pt"))
            tensor: torch.Tensor = self._files[place.file].get_tensor(place.name)
        except (OSError, library.SafetensorError) as problem:
            raise _changed(self.folder / place.file, str(problem)) from problem
        found = TensorSpec(tuple(tensor.shape), tensor.dtype)
        if found != self._specs[name]:
            raise _changed(self.folder / place.file, f"{name} is {_shown(found)} now")
        return tensor

    def finish(self) -> None:
        """Make sure that every tensor was taken."""
        if self.left:
            raise CheckpointError(
                f"{len(self.left)} tensors of the checkpoint were not used: {_list(self.left)}",
                cause="a fault of this program",
            )


def _changed(file: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"{file} has changed since it was examined, a moment ago: {what}",
        cause="something writes the checkpoint's files or removes them while they are read",
        next_step="wait until the files are whole, and run the same command again",
    )


def _library() -> Any:
    """The package safetensors, which only checkpoints need."""
    return need("safetensors", "reading a checkpoint", otherwise="--load-format dummy makes weights without it")


def _index(folder: Path) -> dict[str, str]:
    """Tensor name as the index has it -> file. Without an index, of the single file."""
    path = folder / INDEX
    if not is_there(path) and is_there(folder / SINGLE):
        return {}
    try:
        weight_map = strict_json(read(path))["weight_map"]
        if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
            raise TypeError("weight_map is no object of file names")
    except OSError as problem:
        raise CheckpointError(
            f"{path} cannot be read: {problem.strerror}",
            cause="the folder holds no weights" if is_folder(folder) else "there is no such folder",
            next_step="--model takes the folder with config.json, the index and the .safetensors files; "
            "--load-format dummy needs config.json only",
        ) from problem
    except (ValueError, KeyError, TypeError) as problem:
        raise CheckpointError(
            f"{path} is no index of safetensors files: {type(problem).__name__} {problem}",
            next_step="fetch it again",
        ) from None
    outside = sorted({file for file in weight_map.values() if not _is_name(file)})
    if outside:
        raise CheckpointError(
            f"{path} names what is no file in its folder: {_list(list(map(ascii, outside)))}",
            next_step="fetch it again",
        )
    twice = sorted(name for name in weight_map if PREFIX + name in weight_map)
    if twice:
        raise CheckpointError(
            f"{path} names tensors both with {PREFIX!r} before them and without: {_list(twice)}",
            cause="it is of two files, or of two revisions of the model",
            next_step="fetch it again",
        )
    return weight_map


def _is_name(file: str) -> bool:
    """Whether a text is the name of a file, and of none in another folder."""
    try:
        os.fsencode(file)
    except UnicodeEncodeError:
        return False
    return "\0" not in file and file not in ("", ".", "..") and Path(file).name == file


class _Found:
    """What the files hold. tensors: name without prefix -> (place, what it is). problems: of the files themselves."""

    def __init__(self, folder: Path, named: Mapping[str, str]) -> None:
        self.tensors: dict[str, tuple[Place, TensorSpec | str]] = {}
        self.problems: list[str] = []
        self.twice: list[str] = []
        self.unread: set[str] = set()
        self.folder = folder
        for file in sorted(set(named.values())) or [SINGLE]:
            self._read(file)
        expected = {_plain(name): file for name, file in named.items() if file not in self.unread}
        lost = sorted(name for name, file in expected.items() if self._file(name) != file)
        strangers = sorted(set(self.tensors) - set(expected)) if named else []
        _report(self.problems, "in the index and not in the file that it names", lost)
        _report(self.problems, "in a file and not in the index", strangers)
        _report(self.problems, "in two places", self.twice)

    def _file(self, name: str) -> str:
        return self.tensors[name][0].file if name in self.tensors else ""

    def _read(self, file: str) -> None:
        library = _library()
        if not is_plain_file(self.folder / file):
            self.unread.add(file)
            self.problems.append(f"{file} {'is no file' if is_there(self.folder / file) else 'is missing'}")
            return
        try:
            with library.safe_open(self.folder / file, "pt") as opened:
                for name in opened.keys():  # noqa: SIM118  # it is no dictionary
                    part = opened.get_slice(name)
                    dtype = _DTYPES.get(part.get_dtype())
                    what = TensorSpec(tuple(part.get_shape()), dtype) if dtype is not None else part.get_dtype()
                    if _plain(name) in self.tensors:
                        self.twice.append(_plain(name))
                    self.tensors[_plain(name)] = (Place(file, name), what)
        except (OSError, library.SafetensorError) as problem:
            self.unread.add(file)
            self.problems.append(f"{file} is damaged or cut off: {problem}")

    def against(self, expected: Mapping[str, TensorSpec]) -> list[str]:
        """What is missing, too much or of another kind than expected. Tensors that may be ignored are dropped."""
        problems: list[str] = []
        for name in [name for name in self.tensors if name.startswith("mtp.") and name not in expected]:
            if name.endswith((".embed.weight", ".head.weight")):  # the draft shares the target's
                del self.tensors[name]
        folded = sorted(name for name in self.tensors if name.endswith("_norm.weight") and ".hc_" in name)
        _report(problems, "not folded into hc_*_fn, as this model has it", folded)
        missing = set(expected) - set(self.tensors)
        without_images = {name for name in expected if name.startswith(OPTIONAL_PREFIXES)}
        if without_images <= missing:
            missing -= without_images
        if not self.unread:  # else the damaged file is the reason, and has been told
            _report(problems, "missing", sorted(missing))
        _report(problems, "unknown", sorted(set(self.tensors) - set(expected) - set(folded)))
        for name in sorted(set(self.tensors) & set(expected)):
            found = self.tensors[name][1]
            if found != expected[name]:
                problems.append(f"{name} is {_shown(found)}, expected {_shown(expected[name])}")
        return problems if len(problems) <= 4 * _SHOWN else [*problems[: 4 * _SHOWN], f"and {len(problems)} in all"]


def _plain(name: str) -> str:
    return name.removeprefix(PREFIX)


def _shown(what: TensorSpec | str) -> str:
    return f"a {what}" if isinstance(what, str) else f"{str(what.dtype).removeprefix('torch.')} {list(what.shape)}"


def _list(names: set[str] | list[str]) -> str:
    ordered = sorted(names)
    rest = f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
    return ", ".join(ordered[:_SHOWN]) + rest


def _report(problems: list[str], what: str, names: list[str]) -> None:
    if names:
        problems.append(f"{len(names)} tensor{'s' if len(names) > 1 else ''} {what}: {_list(names)}")


def tensors(folder: Path, config: ModelConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a checkpoint, file by file."""
    with Checkpoint.open(folder, config) as checkpoint:
        for name in sorted(checkpoint.places, key=lambda name: (checkpoint.places[name].file, name)):
            yield name, checkpoint.take(name)
        checkpoint.finish()
