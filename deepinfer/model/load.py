"""From a folder to a model on a device.

Weights are mapped from their files and brought to the device one by one: the host needs memory for the largest tensor
only, and on a CPU for what is touched, which is the files' pages themselves but for the weights that are joined.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from deepinfer.config import ModelConfig, read_config
from deepinfer.errors import CheckpointError, DeepInferError, OptionError, shown
from deepinfer.host_memory import host_memory
from deepinfer.loading.checkpoint import Checkpoint
from deepinfer.loading.dummy import dummy_tensor
from deepinfer.loading.inventory import TABLE, inventory
from deepinfer.model.deep_gemm import Gemm, products_of
from deepinfer.model.model import KEEP_TOKENS, Model, Truncation
from deepinfer.model.products import Products
from deepinfer.model.weights import Take, Weights, gather_weights
from deepinfer.tokenizer import Tokenizer

LoadFormat = Literal["auto", "dummy"]
Progress = Callable[[int, int], None]
"""Told (bytes of weights brought so far, bytes in all)."""
_NO_ROOM = ("can't allocate memory", "size calculation overflowed")
_UNUSED = ("mtp.", "vision.", "aligner.", "image_")
"""What no forward reads yet: the draft model and the image encoder. Examined with the rest, and not brought."""


@dataclass(frozen=True)
class LoadedModel:
    """A model, and what belongs to it.

    tokenizer: None where dummy weights are for a folder without one. stop_ids: tokens that end an answer.
    gemm: how quantised weights are multiplied. gemm_notice: what a user has to know of that, or ''.
    """

    config: ModelConfig
    model: Model
    tokenizer: Tokenizer | None
    stop_ids: tuple[int, ...]
    gemm: Gemm = "exact"
    gemm_notice: str = ""


def load_model(
    path: Path | str,
    *,
    device: torch.device | str,
    load_format: LoadFormat = "auto",
    engram_rows: int | None = None,
    engram_device: torch.device | str | None = None,
    seed: int = 0,
    truncation: Truncation = "off",
    keep_tokens: int = KEEP_TOKENS,
    max_positions: int | None = None,
    gemm: Gemm = "exact",
    progress: Progress | None = None,
) -> LoadedModel:
    """Read a checkpoint's folder: config.json, the tokenizer's files and the weights.

    Args:
        device: where weights go.
        load_format: "auto" reads them; "dummy" makes seeded ones of the right formats, and needs config.json only.
        engram_rows: keep so many rows of each n-gram table, for trials where they do not fit: tokens whose rows were
            cut off read others, so that answers are not the model's.
        engram_device: where the n-gram tables go, if not to `device`: "cpu" leaves them in the host's memory, mapped
            from their files, and what a step needs of them travels with its tokens.
        seed: of dummy weights.
        truncation, keep_tokens, max_positions: as `Model` takes them.
        gemm: "deep_gemm" quantises weights and activations anew for DeepGEMM's FP8 products, which are faster and not
            exact; weights that these cannot take stay exact, which is told. The experts' take twice the memory.

    Raises:
        ConfigError, CheckpointError, DeepInferError: the folder holds no model, not the whole of it, or one that
            cannot be run or does not fit the device.
        ValueError: an argument is not as said.
    """
    folder = Path(path)
    if load_format not in ("auto", "dummy"):
        raise OptionError("load_format", f"must be auto or dummy, not {shown(load_format)}")
    if engram_rows is not None and engram_rows < 1:
        raise OptionError("engram_rows", f"must be at least 1, not {engram_rows}")
    config = read_config(folder)
    where = torch.device(device)
    tables = where if engram_device is None else torch.device(engram_device)
    products = products_of(gemm, where)
    with_tokenizer = load_format == "auto" or (folder / "tokenizer.json").exists()
    tokenizer = Tokenizer(folder) if with_tokenizer else None
    if tokenizer is not None:
        _check_special(config, tokenizer)
    lookup = _lookup(config, tokenizer)
    if load_format == "dummy":  # those of files are mapped, and need not be in memory as a whole
        _check_host(config, where, tables, engram_rows, gemm)
    try:
        if load_format == "dummy":
            weights = _dummy(config, where, tables, seed, engram_rows, progress, products)
        else:
            weights = _read(folder, config, where, tables, engram_rows, progress, products)
        model = Model(
            *(config, weights),
            lookup=lookup,
            truncation=truncation,
            keep_tokens=keep_tokens,
            max_positions=max_positions,
        )
    except RuntimeError as problem:
        if not is_out_of_memory(problem):
            raise
        raise _out_of_memory(config, where, tables, engram_rows, gemm) from problem
    stop_ids = (tokenizer.eos_id,) if tokenizer is not None else ()
    return LoadedModel(config, model, tokenizer, stop_ids, gemm, products.notice())


def _check_host(
    config: ModelConfig, device: torch.device, tables: torch.device, engram_rows: int | None, gemm: Gemm
) -> None:
    """Refuse weights that the host is to hold and has no room for: Linux may give the memory, and end the process."""
    memory = host_memory()
    if device.type == "cpu" and _wanted(config, engram_rows) > memory:
        raise _out_of_memory(config, device, tables, engram_rows, gemm, memory)
    of_tables = _wanted(config, engram_rows, TABLE)
    if tables.type == "cpu" and of_tables > memory:
        raise DeepInferError(
            f"the n-gram tables do not fit the host: they take {of_tables / 2**30:.1f} GiB",
            cause=_host_has(memory),
            next_step="--engram-rows N leaves most of their rows out, for trials",
        )


def _host_has(memory: int) -> str:
    return f"this process may have {memory / 2**30:.1f} GiB: the machine's memory, or what its container is allowed"


def is_out_of_memory(problem: RuntimeError) -> bool:
    """Whether torch found no room: on a CPU it has no error of its own for that."""
    return isinstance(problem, torch.OutOfMemoryError) or any(text in str(problem) for text in _NO_ROOM)


def _out_of_memory(
    config: ModelConfig,
    device: torch.device,
    tables: torch.device,
    engram_rows: int | None,
    gemm: Gemm,
    memory: int | None = None,
) -> DeepInferError:
    """memory: of the host, where that is known to be too little."""
    everything, of_tables = _wanted(config, engram_rows), _wanted(config, engram_rows, TABLE)
    size = f"{(everything if tables == device else everything - of_tables) / 2**30:.1f} GiB"
    ways = []
    if of_tables and tables == device:
        size += f", {of_tables / 2**30:.1f} of them n-gram tables"
        if device.type != "cpu":
            ways.append("--engram-device cpu leaves the n-gram tables on the host")
        ways.append("--engram-rows N leaves most of their rows out, for trials")
    cause = "the model needs more GPUs, or another program holds the memory" if memory is None else _host_has(memory)
    return DeepInferError(
        f"the weights do not fit {device}: they take {size}",
        cause=cause + ("; --gemm deep_gemm doubles what experts take" if gemm != "exact" else ""),
        next_step="; ".join(ways) or "use a device with more memory, or end what else runs there",
    )


def _check_special(config: ModelConfig, tokenizer: Tokenizer) -> None:
    for name, said, found in (
        ("bos_token_id", config.special.bos, tokenizer.bos_id),
        ("eos_token_id", config.special.eos, tokenizer.eos_id),
    ):
        if said not in (None, found):
            raise CheckpointError(
                f"config.json says {name} {said}, and the tokenizer has {found}",
                cause="tokenizer.json and config.json are of different models, or of different revisions of one",
                next_step="fetch both again from the same place",
            )


def _lookup(config: ModelConfig, tokenizer: Tokenizer | None) -> torch.Tensor | None:
    """Engram's vocabulary. Without a tokenizer, one of the right size."""
    if config.engram is None:
        return None
    size = config.engram.compressed_vocab
    if tokenizer is None:
        return torch.arange(config.vocab_size) % size
    found = tokenizer.lookup()
    if int(found.max()) + 1 != size:
        raise CheckpointError(
            f"the tokenizer's compressed vocabulary has {int(found.max()) + 1} ids, and config.json says {size} "
            "(engram_compressed_vocab_size)",
            cause="tokenizer.json and config.json are of different models, or of different revisions of one",
            next_step="fetch both again from the same place",
        )
    return found


class _Counted:
    """Tensors as they are taken, and the progress told."""

    def __init__(self, config: ModelConfig, take: Take, engram_rows: int | None, progress: Progress | None) -> None:
        self._take, self._engram_rows, self._progress = take, engram_rows, progress
        self._done, self._all = 0, _wanted(config, engram_rows)

    def __call__(self, name: str) -> torch.Tensor:
        tensor = self._take(name)
        if self._engram_rows is not None and TABLE in name:
            tensor = tensor[: self._engram_rows]
        self._done += tensor.nbytes
        if self._progress is not None:
            self._progress(self._done, self._all)
        return tensor


def _wanted(config: ModelConfig, engram_rows: int | None, part: str = "") -> int:
    """Bytes of the weights that a forward reads, with so many rows of each n-gram table; of those with `part` in their
    names.
    """
    return sum(
        (spec if engram_rows is None or TABLE not in name else spec.cut(engram_rows)).bytes
        for name, spec in inventory(config).items()
        if part in name and not name.startswith(_UNUSED)
    )


def _read(
    folder: Path,
    config: ModelConfig,
    device: torch.device,
    tables: torch.device,
    engram_rows: int | None,
    progress: Progress | None,
    products: Products,
) -> Weights:
    with Checkpoint.open(folder, config) as checkpoint:
        counted = _Counted(config, checkpoint.take, engram_rows, progress)
        weights = gather_weights(config, counted, device, tables, products)
        checkpoint.left -= {name for name in checkpoint.left if name.startswith(_UNUSED)}
        checkpoint.finish()
    return weights


def _dummy(
    config: ModelConfig,
    device: torch.device,
    tables: torch.device,
    seed: int,
    engram_rows: int | None,
    progress: Progress | None,
    products: Products,
) -> Weights:
    """Weights made one by one as they are asked for, each where it goes."""
    specs = inventory(config)

    def make(name: str) -> torch.Tensor:
        where = tables if TABLE in name else device
        return dummy_tensor(config, name, specs[name], seed, where, engram_rows=engram_rows)

    return gather_weights(config, _Counted(config, make, engram_rows, progress), device, tables, products)
