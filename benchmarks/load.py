"""How much memory of the host loading a checkpoint takes: `python -m benchmarks.load [--gib 0.3] [--device cpu|cuda]`.

A checkpoint of about that size is written in the real format, with experts and n-gram tables in about the real shares,
and loaded by a process of its own. What is told is the peak of its anonymous memory (RssAnon) over what it had before,
sampled every millisecond and after each tensor: pages of the mapped files are not counted, which the kernel takes back
when it needs them. `largest_rss` has them (VmHWM; getrusage's maximum would be that of the process that started it).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from deepinfer.command_line import Parser, exit_code
from deepinfer.config import parse_config, read_config
from deepinfer.errors import DeepInferError, UsageError, unwritable
from deepinfer.loading.checkpoint import INDEX
from deepinfer.loading.dummy import dummy_tensors
from deepinfer.loading.inventory import TABLE, inventory
from deepinfer.loading.tiny import VOCABULARY, tiny_config
from deepinfer.loading.tiny_tokenizer import write_tokenizer
from deepinfer.loading.write import new_folder, write_shards
from deepinfer.model.load import load_model
from deepinfer.ops import dispatch

ROOT = Path(__file__).resolve().parents[1]
TABLES = 0.4
"""The n-gram tables' share of the bytes: 200 of 500 GB."""
SMALLEST = 0.3
Row = dict[str, Any]


def main(argv: Sequence[str]) -> int:
    """Write, load, and print the figures as JSON; returns the exit code."""
    parser = Parser(prog="python -m benchmarks.load", description=__doc__)
    add = parser.add_argument
    add("--gib", type=float, default=SMALLEST, metavar="N", help="size of what is written (default: 0.3)")
    add("--model", type=Path, metavar="DIR", help="load this checkpoint instead, and write none")
    add("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    add(
        "--engram-device",
        choices=("cpu", "cuda"),
        help="where the n-gram tables go (default: with the other weights; from a GPU, both are measured)",
    )
    add("--folder", type=Path, metavar="DIR", help="write the checkpoint below this folder (default: a temporary one)")
    add("--measure", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if not SMALLEST <= given.gib < math.inf:
        raise UsageError(
            f"--gib must be a number of at least {SMALLEST}, not {given.gib}",
            cause="no smaller model has all features at this width",
            next_step="give a larger number",
        )
    if "cuda" in (given.device, given.engram_device) and not torch.cuda.is_available():
        raise DeepInferError("PyTorch sees no GPU", next_step="--device cpu, or a machine with a GPU")
    if given.measure:
        print(json.dumps(measure(given.model, given.device, given.engram_device)))
        return 0
    if given.model is not None:
        read_config(given.model)
    try:
        scratch = tempfile.TemporaryDirectory(dir=given.folder)
    except OSError as problem:
        raise unwritable(f"{given.folder or tempfile.gettempdir()} cannot be written", problem) from problem
    with scratch as folder:
        model = given.model or Path(folder) / "model"
        if given.model is None:
            write(model, sized(int(given.gib * 2**30)), given.device)
        both = ("cuda", "cpu") if given.device == "cuda" and given.engram_device is None else (given.engram_device,)
        print(json.dumps([in_child(model, given.device, tables) for tables in both], indent=1))
    return 0


def sized(total: int) -> Row:
    """config.json of a model of about so many bytes: the tiny one's features, wider, with more experts and rows."""
    values = tiny_config()
    text = values["text_config"]
    hidden = 1024 if total < 2**31 else 2048
    text |= {"hidden_size": hidden, "moe_intermediate_size": hidden // 2, "q_lora_rank": 256, "o_lora_rank": 256}
    per_row = 33 * 3 * text["engram_n_heads"] * len(text["engram_layer_ids"])
    text["engram_vocab_size"] = max(500, int(total * TABLES) // per_row)
    low, high = 12, 4096
    while low < high:
        text["n_routed_experts"] = middle = (low + high + 1) // 2
        low, high = (middle, high) if size(values) <= total else (low, middle - 1)
    text["n_routed_experts"] = low
    return values


def size(values: Row) -> int:
    """Bytes of a model's tensors."""
    return sum(spec.bytes for spec in inventory(parse_config(values)).values())


def write(folder: Path, values: Row, device: str = "cpu") -> None:
    """Write dummy weights, made on a device, as a checkpoint of eight shards."""
    made = dummy_tensors(parse_config(values), device=device)
    with new_folder(folder, last=INDEX) as aside:
        (aside / "config.json").write_text(json.dumps(values), encoding="utf-8")
        write_tokenizer(aside, VOCABULARY)
        write_shards(aside, ((name, tensor.cpu()) for name, tensor in made), shards=8)


def in_child(folder: Path, device: str, engram_device: str | None = None) -> Row:
    """What `measure` says in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.load", "--measure"]
    command += ["--model", str(folder.absolute()), "--device", device]
    if engram_device is not None:
        command += ["--engram-device", engram_device]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise DeepInferError(f"loading {folder} ended with {done.returncode}", cause="it said why, above")
    found: Row = json.loads(done.stdout)
    return found


def measure(folder: Path, device: str, engram_device: str | None) -> Row:
    """Load in this process. Bytes; `copied`: of weights that stay in the host's memory outside of the files' pages."""
    backend = "triton" if device == "cuda" else "reference"
    with dispatch.using(backend):
        torch.zeros(1, device=device)
        _import_all()
        with Watch() as watch:
            began = time.perf_counter()
            loaded = load_model(folder, device=device, engram_device=engram_device, progress=watch.sample)
            seconds = time.perf_counter() - began
    specs = inventory(loaded.config)
    anonymous = [one for one in tensors(loaded.model.weights) if one.device.type == "cpu" and not in_file(one)]
    return {
        "device": device,
        "engram_device": engram_device or device,
        "checkpoint": sum(file.stat().st_size for file in folder.glob("*.safetensors")),
        "tables": sum(spec.bytes for name, spec in specs.items() if TABLE in name),
        "largest_tensor": max(spec.bytes for spec in specs.values()),
        "copied": sum(one.untyped_storage().nbytes() for one in anonymous),
        "before": watch.before,
        "peak_over_before": watch.peak - watch.before,
        "after_over_before": rss("RssAnon") - watch.before,
        "largest_rss": rss("VmHWM"),
        "seconds": round(seconds, 2),
    }


def _import_all() -> None:
    """What loading imports at its first use is not the checkpoint's."""
    import safetensors.torch
    import tokenizers

    del safetensors, tokenizers


class Watch:
    """The largest anonymous memory of this process while the block runs."""

    def __init__(self) -> None:
        self.before = self.peak = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self.before = self.peak = rss("RssAnon")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def sample(self, *_: object) -> None:
        """Look now."""
        self.peak = max(self.peak, rss("RssAnon"))

    def _run(self) -> None:
        while not self._done.wait(0.001):
            self.sample()


def rss(name: str) -> int:
    """A line of /proc/self/status in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def tensors(value: object) -> Iterator[torch.Tensor]:
    """All tensors of nested dataclasses and tuples."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple):
        for one in value:
            yield from tensors(one)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from tensors(getattr(value, field.name))


def in_file(tensor: torch.Tensor) -> bool:
    """Whether a tensor's values are pages of a mapped file."""
    place = tensor.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *_, inode = line.split()[:5]
        low, high = (int(one, 16) for one in span.split("-"))
        if low <= place < high:
            return inode != "0"
    return False


if __name__ == "__main__":
    sys.exit(exit_code(lambda: main(sys.argv[1:])))
