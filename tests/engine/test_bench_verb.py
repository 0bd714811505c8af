"""`deepinfer bench` on the tiny model: it runs what it was told to, and counts it right."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deepinfer import LLM, RequestOutput, cli
from deepinfer.cli import bench
from deepinfer.engine.sequence import Request

CPU = ("--device", "cpu", "--backend", "reference")
SIZES = (*CPU, "--input-len", "20", "--output-len", "3")


def test_latency_measures_each_batch(tiny_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [*SIZES, "--batch-size", "2", "--iterations", "2", "--warmups", "1", "--quiet", "--json"]
    assert cli.main(["bench", "latency", "--model", str(tiny_folder), *options]) == 0
    seen = capsys.readouterr()
    assert seen.err == ""
    report = json.loads(seen.out)
    assert (report["kind"], report["backend"], len(report["batch_seconds"])) == ("latency", "reference", 2)
    assert (report["requests"], report["failed"], report["prompt_tokens"], report["output_tokens"]) == (4, 0, 80, 12)
    assert report["cached_tokens"] == 0, "no prompt is measured twice"
    assert report["seconds"] == pytest.approx(sum(report["batch_seconds"]))
    for name in ("ttft", "tpot", "itl", "e2e"):
        assert 0 < report[name]["median"] <= report[name]["p99"]


def test_throughput_prints_the_block(tiny_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [*SIZES, "--num-prompts", "4", "--max-concurrency", "2", "--warmups", "0"]
    assert cli.main(["bench", "throughput", "--model", str(tiny_folder), *options]) == 0
    seen = capsys.readouterr()
    rows = {line[:28].strip(): line[28:].split() for line in seen.out.splitlines()}
    assert (rows["requests"], rows["prompt tokens"], rows["output tokens"]) == (["4"], ["80"], ["12"])
    assert all(len(rows[name]) == 3 for name in ("TTFT (ms)", "TPOT (ms, after the first)", "ITL (ms)"))
    assert "requests" in seen.err, "progress goes to stderr"


def test_of_a_thousand_million_requests_few_are_made_beforehand(
    tiny_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Request] = []
    stream, source = LLM.stream, bench._requests

    def counted(args: argparse.Namespace, llm: LLM) -> Iterator[Request]:
        for request in source(args, llm):
            made.append(request)
            yield request

    def stopped(self: LLM, requests: Iterable[Request], **options: Any) -> Iterator[RequestOutput]:
        return itertools.islice(stream(self, requests, **options), 8)

    monkeypatch.setattr(bench, "_requests", counted)
    monkeypatch.setattr(LLM, "stream", stopped)
    monkeypatch.setattr(bench, "AT_ONCE", 3)
    options = [*SIZES, "--num-prompts", "1000000000", "--max-concurrency", "2", "--warmups", "0", "--quiet", "--json"]
    assert cli.main(["bench", "throughput", "--model", str(tiny_folder), *options]) == 0
    assert 3 < len(made) <= 8, "three beforehand, the others in their turn"


def test_lengths_that_the_blocks_do_not_hold(tiny_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [*CPU, "--input-len", "100", "--output-len", "40", "--quiet", "--blocks", "2"]
    assert cli.main(["bench", "latency", "--model", str(tiny_folder), *options]) == 1
    told = capsys.readouterr().err
    assert "together pass the 128 tokens of prompt and output\n" in told
    assert "likely cause: the cache has 2 blocks of 128 tokens, one of them kept for padding\n" in told


def test_lengths_that_the_model_does_not_have(tiny_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [*CPU, "--input-len", "4000", "--output-len", "97", "--quiet"]
    assert cli.main(["bench", "latency", "--model", str(tiny_folder), *options]) == 1
    told = capsys.readouterr().err
    assert "together pass the 4096 tokens of prompt and output" in told and "next step: shorten one of them\n" in told
    assert cli.main(["bench", "latency", "--model", str(tiny_folder), *options, "--max-model-len", "1000"]) == 1
    assert (
        "next step: shorten one of them, or open the model with a larger --max-model-len\n" in capsys.readouterr().err
    )
