"""What the gates make of what a user meets: the entrypoint, labels, and the layers that were added."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from build.gates.judge.layers import judge_layers, needles
from build.gates.judge.rows import Ending, Verdicts
from build.gates.judge.surface import REQUIRED, Surface, judge_command, judge_entrypoint
from build.gates.place import modules
from tests.build.gates_ground import base_inspection, image_plan


def _report(**versions: str) -> Ending:
    details = {"torch": {"nccl": {"version": versions.pop("nccl", "2.32.3")}, "cuda": "13.0"}}
    parts = [
        {"name": name, "status": "present" if version else "absent", "version": version, "reason": "why",
         "details": details.get(name, {})}
        for name, version in {"torch": "2.11.0+cu130", "deep_gemm": "2.8.2", **versions}.items()
    ]  # fmt: skip
    return Ending(0, stdout=json.dumps({"deepinfer": {"version": "0.1.0"}, "parts": parts}))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (_report(), ""),
        (_report(deep_gemm="2.8.1"), "`env` says that deep_gemm is 2.8.1, the plan 2.8.2"),
        (_report(deep_gemm=""), "`env` says that deep_gemm is absent: why"),
        (_report(torch="2.12.0"), "`env` says that torch is 2.12.0, not 2.11.0+cu130"),
        (_report(nccl="2.28.9"), "torch loads NCCL 2.28.9, the plan put 2.32.3 in its place"),
        (Ending(139, "SIGSEGV"), "killed by SIGSEGV"),
        (Ending(0, stdout="{}"), "it printed something else than its report"),
    ],
)
def test_env_has_to_agree_with_the_plan(answer: Ending, words: str) -> None:
    verdicts = Verdicts()
    judge_command(verdicts, answer, image_plan(), base_inspection(), modules(image_plan()))
    assert verdicts.results[0].ok is (words == "")
    assert words in verdicts.results[0].detail


def _labels(**changes: str) -> dict[str, str]:
    labels = dict.fromkeys(REQUIRED, "x") | {
        "org.opencontainers.image.version": "0.1.0",
        "org.opencontainers.image.created": "2026-11-30T00:00:00Z",
        "io.deepinfer.hopper": "1",
        "io.deepinfer.hopper.nccl": "2.32.3",
        "io.deepinfer.hopper.manifest": "sha256:" + "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
    }
    return labels | {name.replace("__", "."): value for name, value in changes.items()}


@pytest.mark.parametrize(
    ("user", "health", "labels", "words"),
    [
        ("10001:10001", Ending(0), _labels(), ""),
        ("", Ending(0), _labels(), "run as root"),
        ("0:0", Ending(0), _labels(), "run as root"),
        ("10001", None, _labels(), "no HEALTHCHECK"),
        ("10001", Ending(1, stderr="boom"), _labels(), "the health check fails: status 1: boom"),
        ("10001", Ending(0), _labels(io__deepinfer__hopper__nccl="2.28.9"), "says 2.28.9, `env` says 2.32.3"),
        ("10001", Ending(0), _labels(io__deepinfer__hopper__manifest="sha256:0"), "not the digest of the image's own"),
        ("10001", Ending(0), _labels(org__opencontainers__image__created="today"), "is no time: today"),
        ("10001", Ending(0), _labels(org__opencontainers__image__source=""), "image.source is missing or empty"),
    ],
)
def test_the_surface_of_an_image(user: str, health: Ending | None, labels: dict[str, str], words: str) -> None:
    verdicts = Verdicts()
    surface = Surface(_report(), health, user, labels, "{}")
    judge_entrypoint(verdicts, surface, image_plan(), base_inspection(), modules(image_plan()))
    assert verdicts.results[0].ok is (words == "")
    assert words in verdicts.results[0].detail


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("/etc/pip.conf", "a configuration that may hold credentials"),
        ("/srv/ci/.docker/config.json", "a configuration that may hold credentials"),
        ("/usr/local/share/ca-certificates/host.crt", "a key or certificate"),
        ("/opt/deepinfer/site/deep_gemm-2.8.2.whl", "left by the builder"),
        ("/src/setup.py", "left by the builder"),
        ("/srv/ci/.cache/pip/x", "left by the builder"),
        ("/usr/lib/p/certifi/cacert.pem", ""),
        ("/opt/deepinfer/site/deep_gemm/include/build/x.cuh", ""),
        ("/usr/lib/p/build/env.py", ""),
    ],
)
def test_added_files_by_name(path: str, what: str) -> None:
    verdicts = Verdicts()
    judge_layers(verdicts, {"added": [path]}, history=["COPY x"], environment={}, labels={}, hidden={}, seconds=1.0)
    assert verdicts.results[0].ok is (what == "")
    assert (f"{path}: {what}" if what else "1 file in 1 step:") in verdicts.results[0].detail


def test_history_environment_and_labels_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.internal.example/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://pypi.org/simple")
    hidden = {what: text for what, text in needles().items() if what.startswith("the host of PIP")}
    assert hidden == {"the host of PIP_INDEX_URL": "mirror.internal.example"}
    verdicts = Verdicts()
    judge_layers(
        verdicts,
        {"added": None},
        history=["RUN pip install -i https://mirror.internal.example/simple x"],
        environment={"HF_TOKEN": "hf_x", "INDEX": "https://me:pw@host/"},
        labels={"source": "https://mirror.internal.example/git"},
        hidden=hidden,
        seconds=1.0,
    )
    detail = verdicts.results[0].detail
    assert "(RUN pip install" in detail
    assert "the environment variable HF_TOKEN is set in the image" in detail
    assert "the environment variable INDEX holds a URL with a password" in detail
    assert "the label source names the host of PIP_INDEX_URL" in detail
    assert "hf_x" not in detail


def test_a_scan_that_failed_or_had_no_base_is_not_silent() -> None:
    verdicts = Verdicts()
    judge_layers(verdicts, {}, history=[], environment={}, labels={}, hidden={}, seconds=0, problem="killed by SIGKILL")
    judge_layers(verdicts, {"added": None}, history=[], environment={}, labels={}, hidden={}, seconds=0)
    judge_layers(verdicts, {}, history=[], environment={}, labels={}, hidden={}, seconds=0)
    assert [result.ok for result in verdicts.results] == [False, True, False]
    assert "files were not compared: the base is not here" in verdicts.results[1].detail
    assert "could not be listed: the scan printed no list" in verdicts.results[2].detail


@pytest.mark.parametrize(
    ("proxy", "hidden"),
    [
        ("http://proxy.own.example:3128", "proxy.own.example"),
        ("10.0.0.7:3128", "10.0.0.7"),
        ("http://proxy:3128", "//proxy"),
        ("http://localhost:3128", None),
        ("http://127.0.0.1:3128", None),
        ("http://[::1]:3128", None),
        ("http://[::1", None),
    ],
)
def test_a_host_is_hidden_by_a_text_that_tells_it_from_other_words(
    proxy: str, hidden: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy of this machine itself tells nothing, and its name stands in many a file."""
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    assert needles().get("the host of HTTPS_PROXY") == hidden


def test_indexes_of_pips_configuration_are_hidden_whatever_is_escaped_in_their_addresses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """pip itself writes the file, by its names of the settings."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    hosts = {"index_url": "one.own.example", "extra_index_url": "two.own.example"}
    for name, host in hosts.items():
        setting = [f"global.{name}", f"https://me%40team:x@{host}/simple"]
        subprocess.run([sys.executable, "-m", "pip", "config", "--user", "set", *setting], check=True)
    assert {text for text in needles().values() if text.endswith(".own.example")} == set(hosts.values())


def test_every_host_of_a_setting_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://one.own.example/simple https://two.own.example/simple")
    monkeypatch.setenv("HTTP_PROXY", "http://one.own.example:3128")
    found = {what: text for what, text in needles().items() if text.endswith(".own.example")}
    assert found == {
        "the host of PIP_EXTRA_INDEX_URL": "one.own.example",
        "the host of PIP_EXTRA_INDEX_URL (2)": "two.own.example",
        "the host of HTTP_PROXY": "one.own.example",
    }
