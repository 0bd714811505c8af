"""The image kernels (kernel_spec A.17)."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from deepinfer.ops import dispatch
from deepinfer.ops.case import Case
from deepinfer.ops.execution import run
from deepinfer.ops.image_embed_ops import batch_downsample, replace_input_embeds, rgb_pad_to_patches
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases

FAMILY = "image_embed_ops"


def bf16(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.bfloat16)


@small_cases(FAMILY)
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case(FAMILY)
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


@small_cases(FAMILY)
def test_reference_against_loops(case: Case) -> None:
    call = case.call()
    given = {one.name: one.value for one in call.arguments}
    got = run(case.factory, call, "reference", "cpu").results
    if case.factory == "replace_input_embeds_tl":
        assert got["input_embeds"].equal(_replaced(given))
    elif case.factory == "rgb_pad_to_patches_tl":
        assert got["output"].equal(_patched(given, *call.parameters))
    else:
        _windows_are_right(given, got, *call.parameters)


def _replaced(given: dict) -> torch.Tensor:
    expected, nth = given["input_embeds"].clone(), 0
    pads = given["image_pad_token_ids"].tolist()
    for row, token in enumerate(given["input_ids"].tolist()):
        if token == given["image_token_id"]:
            if nth < len(given["images_embeds"]):
                expected[row] = given["images_embeds"][nth]
            nth += 1
        elif token in pads:
            expected[row] = given["image_pad_embeds"][pads.index(token)]
    return expected


def _patched(given: dict, p: int) -> torch.Tensor:
    """Every pixel on its own, from the image's bytes and a table of the 256 values."""
    mean, std = torch.tensor(given["mean"]), torch.tensor(given["std"])
    table = [((torch.tensor(float(byte)) / 255 - mean) / std).bfloat16() for byte in range(256)]
    expected = given["output"].clone()
    for image, (width, height) in enumerate(given["image_real_sizes"].tolist()):
        columns, rows = given["images_spatial_crop"][image].tolist()
        left, top = (round(Fraction(n * p - size, 2)) for n, size in ((columns, width), (rows, height)))
        begin = int(given["cu_raw_bytes"][image])
        for y in range(rows * p):
            for x in range(columns * p):
                row = int(given["cu_seqlens_vit"][image]) + y // p * columns + x // p
                for channel in range(3):
                    byte = int(given["pad_color"])
                    if 0 <= x - left < width and 0 <= y - top < height:
                        byte = int(given["image_raw_concat"][begin + ((y - top) * width + x - left) * 3 + channel])
                    expected[row, channel, y % p, x % p] = table[byte]
    return expected


def _windows_are_right(given: dict, got: dict, r: int, dim: int, pool: bool, dtype: torch.dtype) -> None:
    at = 0
    for image, (width, height) in enumerate(given["images_spatial_crop"].tolist()):
        first = int(given["cu_seqlen"][image])
        for top in range(0, height, r):
            for left in range(0, width, r):
                inside = []
                for i in range(r):
                    for j in range(r):
                        there = top + i < height and left + j < width
                        row = given["images_feature"][first + (top + i) * width + left + j] if there else None
                        inside += [row] if there else []
                        if not pool:
                            assert got["images_embeds"][at, :, i, j].equal(
                                torch.zeros(dim).to(dtype) if row is None else row
                            )
                if pool:
                    mean = torch.stack(inside).double().mean(0)
                    slack = 1e-2 if dtype == torch.bfloat16 else 1e-5
                    torch.testing.assert_close(got["images_embeds_sum"][at].double(), mean, atol=slack, rtol=slack)
                at += 1
    assert at == len(given["images_id"])


def test_replace_counts_the_image_tokens_itself() -> None:
    embeds = torch.zeros(5, 2, dtype=torch.bfloat16)
    ids = torch.tensor([9, 2, 5, 2, 2], dtype=torch.int32)
    images, pads = torch.tensor([[1, 2], [3, 4]]).bfloat16(), torch.tensor([[7, 8]]).bfloat16()
    replace_input_embeds(embeds, ids, images, 2, torch.tensor([5], dtype=torch.int32), pads)
    assert embeds.tolist() == [[0, 0], [1, 2], [7, 8], [3, 4], [0, 0]]
    replace_input_embeds(embeds[:0], ids[:0], images, 2, torch.tensor([5], dtype=torch.int32), pads)


def test_gap_is_halved_to_the_even_side() -> None:
    """One pixel in a grid of 2: gap 1 leaves 0 to the left; in a grid of 4: gap 3 leaves 2."""
    for patches, expected in ((1, 0), (2, 2)):
        sizes = torch.tensor([[1, 2 * patches]], dtype=torch.int32)
        raw = torch.full((6 * patches,), 255, dtype=torch.uint8)
        crop = torch.tensor([[patches, patches]], dtype=torch.int32)
        total = patches**2
        starts = torch.tensor([0, total], dtype=torch.int32)
        cu_raw = torch.tensor([0, len(raw)])
        found = rgb_pad_to_patches(raw, cu_raw, sizes, crop, starts, total, 2, 0.0, 1.0, 0.0)
        line = found.view(patches, patches, 3, 2, 2)[0, :, 0, 0].flatten()
        assert line.nonzero().flatten().tolist() == [expected]


def test_downsample_by_mode() -> None:
    feature = torch.arange(6, dtype=torch.float32).view(6, 1)
    crop = torch.tensor([[0, 0], [3, 2]])
    assert batch_downsample(feature, crop, 2).tolist() == [[0, 1, 3, 4], [2, 0, 5, 0]]
    assert batch_downsample(feature, crop, 2, "identity", 2).shape == (2, 4)
    assert batch_downsample(feature, crop, 2, "pooling_mlp").tolist() == [[2.0], [3.5]]
    assert batch_downsample(feature[:0], crop[:1], 2).shape == (0, 4)


I32 = torch.zeros(2, dtype=torch.int32)
I64 = torch.zeros(2, dtype=torch.int64)
PAIR = torch.zeros(1, 2, dtype=torch.int32)
ROWS = torch.zeros(2, 4, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("function", "arguments", "error", "text"),
    [
        (replace_input_embeds, (ROWS.float(), I32, ROWS, 2, I32, ROWS), TypeError, "input_embeds must be bfloat16"),
        (replace_input_embeds, (ROWS, I64, ROWS, 2, I32, ROWS), TypeError, "input_ids must be int32"),
        (replace_input_embeds, (ROWS, I32, ROWS[:, :3], 2, I32, ROWS), ValueError, "images_embeds has the shape"),
        (replace_input_embeds, (ROWS, I32, ROWS, 2**31, I32, ROWS), ValueError, "image_token_id must be at least"),
        (replace_input_embeds, (ROWS, I32, ROWS, 2, I32, ROWS[:1]), ValueError, "image_pad_embeds has the shape"),
        (rgb_pad_to_patches, (I32, I64, PAIR, PAIR, I32, 1, 2, 0.5, 0.5, 0.0), TypeError, "image_raw_concat must be"),
        (rgb_pad_to_patches, (I32.byte(), I64, PAIR, PAIR, I32, 1, 0, 0.5, 0.5, 0.0), ValueError, "patch_size must be"),
        (rgb_pad_to_patches, (I32.byte(), I64, PAIR, PAIR, I32, 1, 2, 0.5, 0.0, 0.0), ValueError, "std must not be 0"),
        (rgb_pad_to_patches, (I32.byte(), I64[:1], PAIR, PAIR, I32, 1, 2, 0.5, 1.0, 0.0), ValueError, "cu_raw_bytes"),
        (batch_downsample, (ROWS, PAIR.long(), 0), ValueError, "downsample_ratio must be at least 1"),
        (batch_downsample, (ROWS, PAIR, 2), TypeError, "images_spatial_crop must be int64"),
        (batch_downsample, (ROWS, PAIR.long(), 2, "maximum"), ValueError, "mode must be"),
        (batch_downsample, (ROWS, I64[:1], 2), ValueError, "images_spatial_crop must be a tensor whose last"),
    ],
)
def test_refused(function, arguments: tuple[object, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text), dispatch.using("reference"):
        function(*arguments)
