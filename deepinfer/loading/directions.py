"""Random matrices between few directions: what makes dummy weights as calm as trained ones.

What a trained network computes lies in few directions of its wide vectors; what rounding adds lies in all of them, so
a product keeps little of it. Matrices of independent values would pass both on alike: a bit that rounds the other way
would grow from layer to layer until it is all there is, and two correct engines could not be compared. Here every
wide vector of the model (an axis) has directions of its own, a thirty-second of its width, and a matrix takes those
of its input to those of its output.
"""

from __future__ import annotations

import math
import re
import zlib
from dataclasses import dataclass

import torch

from deepinfer.config import ModelConfig

_SHARE, _FEWEST = 32, 4
_AXES: dict[str, tuple[str | None, str | None]] = {
    "embed": (None, "hidden"),
    "head": (None, "hidden"),
    "attn.wq_a": ("query", "hidden"),
    "attn.wq_b": ("key", "query"),
    "attn.wkv": ("key", "hidden"),
    "attn.wo_a": ("mixed", "key"),
    "attn.wo_b": ("hidden", "mixed"),
    "attn.compressor.wkv": ("key", "hidden"),
    "attn.compressor.wgate": (None, "hidden"),
    "attn.indexer.wq_b": ("index", "query"),
    "attn.indexer.weights_proj": (None, "hidden"),
    "attn.indexer.wk": ("index", "key"),
    "ffn.gate": (None, "hidden"),
    "ffn.w1": (None, "hidden"),
    "ffn.w3": (None, "hidden"),
    "ffn.w2": ("hidden", None),
    "engram.wkv": ("hidden", None),
    "main_proj": ("hidden", "hidden"),
}
"""Kind of a matrix -> the axes of its output and its input. None: as many directions as there are columns, as after
SwiGLU, or ones that no other matrix shares.
"""
_OF_ITS_LAYER = ("query", "mixed")
_PLACE = re.compile(r"^(layers|mtp)\.\d+\.|(?<=ffn\.)(shared_experts|experts\.\d+)\.|\.weight$")


@dataclass(frozen=True)
class Axis:
    """name: what tells its directions from others'. width: of one vector; a matrix may have several side by side."""

    name: str
    width: int

    @property
    def rank(self) -> int:
        """How many directions there are."""
        return min(max(self.width // _SHARE, _FEWEST), self.width)


def axes(config: ModelConfig, name: str) -> tuple[Axis | None, Axis | None]:
    """The axes of the output and the input of a matrix, by its name in a checkpoint (`X.weight`)."""
    attention = config.attention
    widths = {
        "hidden": config.hidden,
        "query": attention.q_rank,
        "key": attention.head_dim,
        "mixed": attention.o_groups * attention.o_rank,
        "index": config.indexer.head_dim,
    }
    output, input_ = _AXES.get(kind(name), (None, None))
    own = ".".join(name.split(".")[:2])

    def axis(one: str | None) -> Axis | None:
        return None if one is None else Axis(f"{own}.{one}" if one in _OF_ITS_LAYER else one, widths[one])

    return axis(output), axis(input_)


def kind(name: str) -> str:
    """A tensor's name without its layer, its expert, and `.weight`."""
    return _PLACE.sub("", name)


def matrix(
    generator: torch.Generator, rows: int, columns: int, output: Axis | None, input_: Axis | None, seed: int
) -> torch.Tensor:
    """[rows, columns] of about unit variance on the generator's device, float32."""
    device = generator.device
    left = _directions(output, seed, device) if output else None
    right = _directions(input_, seed, device) if input_ else None
    core_rows = rows if left is None else len(left) * (rows // left.shape[1])
    core_columns = columns if right is None else len(right) * (columns // right.shape[1])
    values = torch.randn(core_rows, core_columns, generator=generator, device=device)
    if left is not None:
        parts = values.view(-1, len(left), core_columns)
        values = torch.einsum("ro,nrc->noc", left, parts).reshape(rows, core_columns) * len(left) ** -0.5
    if right is not None:
        parts = values.view(rows, -1, len(right))
        values = torch.einsum("onr,ri->oni", parts, right).reshape(rows, columns) * len(right) ** -0.5
    return values


def gain(columns: int, input_: Axis | None) -> float:
    """What a `matrix` multiplies the size of vectors of its input's directions by."""
    if input_ is None:
        return math.sqrt(columns)
    return columns / math.sqrt(input_.rank * (columns // input_.width))


def _directions(axis: Axis, seed: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(zlib.crc32(f"{seed} {axis.name} {axis.width}".encode()))
    return torch.randn(axis.rank, axis.width, generator=generator, device=device)
