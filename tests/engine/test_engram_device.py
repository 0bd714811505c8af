"""Where the n-gram tables are: beside the other weights, or on the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from deepinfer import LLM, SamplingParams, cli
from deepinfer.engine.placement import tables_on
from deepinfer.errors import DeepInferError
from deepinfer.loading.dummy import dummy_tensor
from deepinfer.model import load

GPU, HOST = torch.device("cuda", 1), torch.device("cpu")


def test_they_stay_with_the_model_or_go_to_the_host() -> None:
    assert [tables_on(asked, GPU) for asked in (None, "cuda", "cuda:1", "cpu")] == [GPU, GPU, GPU, HOST]
    assert [tables_on(asked, HOST) for asked in (None, "cpu")] == [HOST, HOST]


@pytest.mark.parametrize(
    ("asked", "device", "said"),
    [
        ("cuda", HOST, "engram_device cuda: the model is on cpu"),
        ("cuda:0", GPU, "engram_device cuda:0: the model is on cuda:1"),
        ("disk", HOST, "engram_device must be cpu or cuda, not 'disk'"),
    ],
)
def test_elsewhere_is_refused(asked: str, device: torch.device, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        tables_on(asked, device)


def test_the_option_reaches_the_model(tiny_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["ask", "--model", str(tiny_folder), "--device", "cpu", "--max-tokens", "1", "--engram-device"]
    assert cli.main([*ask, "cuda", "fox"]) == 1
    told = capsys.readouterr()
    assert told.out == "" and "--engram-device cuda: the model is on cpu" in told.err and "next step: " in told.err
    assert cli.main([*ask, "disk", "fox"]) == 1
    assert "invalid choice: 'disk'" in capsys.readouterr().err
    assert cli.main([*ask, "cpu", "fox"]) == 0


@pytest.mark.parametrize(
    ("options", "ways"),
    [
        ({}, ["--engram-device cpu leaves the n-gram tables on the host", "--engram-rows N leaves most"]),
        ({"engram_rows": 10}, ["--engram-device cpu", "--engram-rows N"]),
        ({"engram_device": "cpu"}, ["a device with more memory"]),
    ],
)
def test_without_memory_what_helps_is_told(
    options: dict[str, Any], ways: list[str], tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables count where they would be, and their options are named where they would help."""

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(load, "gather_weights", full)
    with pytest.raises(DeepInferError, match="the weights do not fit cuda:1: they take ") as caught:
        load.load_model(tiny_folder, device=GPU, **options)
    assert all(way in caught.value.next_step for way in ways)
    assert "from Python" not in str(caught.value)
    on_host = "engram_device" in options
    assert ("n-gram tables" in caught.value.what) != on_host and ("--engram" in caught.value.next_step) != on_host


def test_dummy_weights_are_made_one_by_one_and_each_where_it_goes(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that does not fit a device must not be made there first."""
    made: list[tuple[str, torch.device | str]] = []

    def make(*given: Any, **options: Any) -> torch.Tensor:
        made.append((given[1], given[4]))
        return dummy_tensor(*given[:4], "cpu", **options)

    monkeypatch.setattr(load, "dummy_tensor", make)
    monkeypatch.setattr(load, "gather_weights", lambda config, take, *_: [take(name) for name in NAMES])
    monkeypatch.setattr(load, "Model", lambda *_, **__: None)
    load.load_model(tiny_folder, device=GPU, engram_device="cpu", load_format="dummy", engram_rows=7)
    assert made == [(NAMES[0], HOST), (NAMES[1], HOST), (NAMES[2], GPU)]


NAMES = ("layers.1.engram.embed.weight", "layers.1.engram.embed.scale", "layers.1.engram.wkv.weight")


@pytest.mark.gpu
@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_a_model_with_tables_on_the_host_runs(load_format: Any, tiny_folder: Path) -> None:
    """A checkpoint's gives the same bits; dummy tables of a processor are others than those of a GPU."""
    params, prompts = (
        SamplingParams(temperature=0, max_tokens=6, logprobs=2, ignore_eos=True),
        ["The fox", "once " * 90],
    )
    there, here = (
        LLM(tiny_folder, device="cuda", engram_device=where, load_format=load_format, blocks=20, max_num_seqs=4)
        for where in ("cuda", "cpu")
    )
    assert {one.own.table.device.type for one in here.engine.loaded.model.engram.values()} == {"cpu"}
    answers = [[output.outputs for output in llm.generate(prompts, params)] for llm in (there, here)]
    assert load_format == "dummy" or answers[0] == answers[1]
