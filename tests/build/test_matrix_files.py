"""Reading matrix.yaml: the real file is accepted, and no file whatever ends in anything but a MatrixError."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from build.cache import REPOSITORY
from build.errors import MatrixError
from build.matrix.load import load_matrix
from build.matrix.model import Matrix

REAL = (REPOSITORY / "matrix.yaml").read_text()


def clone(folder: Path, text: str | bytes) -> Path:
    """A repository with just what the real matrix names, and a matrix of its own."""
    for name in ("flagtree", "vllm", "flagos", "cpu", "host"):
        (folder / "images" / name).mkdir(parents=True, exist_ok=True)
        for lock in ("replica.lock", "runtime.lock", "toolchain.lock"):
            (folder / "images" / name / lock).touch()
    (folder / "deepinfer" / "csrc").mkdir(parents=True, exist_ok=True)
    (folder / "images" / "shims").mkdir(parents=True, exist_ok=True)
    (folder / "images" / "shims" / "cuda12_memcpy_batch.hpp").touch()
    (folder / "setup.py").touch()
    file = folder / "matrix.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_the_real_matrix_loads() -> None:
    matrix = load_matrix()
    assert set(matrix.targets) == {"flagtree", "vllm", "flagos", "cpu", "host"}
    assert matrix.targets["flagtree"].components == ("nccl", "_C", "deep_gemm", "deep_ep")
    assert matrix.components["nccl"].provides == "nccl"
    assert matrix.components["deep_ep"].beyond["cuda"].stated == ">=13.1"
    assert matrix.components["deep_gemm"].environment == {"DG_FORCE_BUILD": "1"}
    assert matrix.components["_C"].memory_gib == 2.0
    assert matrix.targets["flagtree"].replica is not None
    assert matrix.targets["flagtree"].replica.python == "3.13"


def test_the_extension_has_the_engine_s_version() -> None:
    import tomllib

    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert load_matrix().components["_C"].version == project["version"]


BOMB = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
FILES = {
    "empty": (b"", "is empty"),
    "only a comment": (b"# nothing\n", "is empty"),
    "binary": (bytes(range(256)), "not UTF-8"),
    "latin-1": ("title: café".encode("latin-1"), ":1: not UTF-8 text \\(byte 0xe9\\)"),
    "utf-16": ("schema: 1".encode("utf-16"), "not UTF-8"),
    "nul": (b"schema: \0", "not YAML: the character '\\\\x00' is not allowed"),
    "huge": (b"# " + b"x" * 300_000, "larger than 256 KiB"),
    "deep": (b"a: " + b"[" * 5000 + b"]" * 5000, "nested more than 16 deep"),
    "wide": (b"a: [" + b"x," * 20_000 + b"]", "more than 10000 values"),
    "aliases": (BOMB.encode(), r"aliases \(\*name\) are not accepted"),
    "long value": (b"a: " + b"x" * 9000, "a value of more than 4096 characters"),
    "a list": (b"- a\n- b\n", "must be a mapping of keys to values, not a list"),
    "a word": (b"hello", "must be a mapping of keys to values, not the text 'hello'"),
    "yaml version": (b"%YAML 9.0\n---\na: b", "not YAML"),
    "overlong yaml version": (b"%YAML 1." + b"1" * 5000 + b"\n---\na: b", "not YAML"),
}


@pytest.mark.parametrize(("content", "said"), FILES.values(), ids=FILES.keys())
def test_a_file_that_is_no_matrix(tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(MatrixError, match=said):
        load_matrix(clone(tmp_path, content))


def test_a_byte_order_mark_is_welcome(tmp_path: Path) -> None:
    assert isinstance(load_matrix(clone(tmp_path, b"\xef\xbb\xbf" + REAL.encode())), Matrix)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    for path, said in (
        (tmp_path / "none.yaml", "No such file"),
        (tmp_path, "not a plain file"),
        (pipe, "not a plain file"),
        (Path("/dev/zero"), "not a plain file"),
        (tmp_path / ("x" * 300), "cannot be read"),
        (Path("a\0b"), "cannot be read"),
    ):
        with pytest.raises(MatrixError, match=said):
            load_matrix(path)


ODD = st.sampled_from(
    [
        "",
        "~",
        "[]",
        "{}",
        "[[",
        "- x",
        "*a",
        "&a x",
        "!!python/name:os.system x",
        "!x",
        '"',
        "'",
        "|",
        ">",
        "1e999",
        "0x1",
        "yes",
        "2.10",
        "2026-01-01",
        "\t",
        "\0",
        "\u2028",
        "\ud7ff",
        "é",
        "a: b",
        "? x",
        "<<",
        "..",
        "/",
        "%",
        "@",
        "`",
        "$(x)",
        '"\\uD800"',
        '"\\UFFFFFFFF"',
        "x" * 5000,
        "#",
        ":",
        ",",
        "=",
        "\\",
        "---",
        "...",
        "\x85",
        "9" * 5000,
        "1:2:3",
    ]
) | st.text(max_size=12)


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """The real file after one to four edits: lines lost, doubled, swapped, values replaced, characters put in."""
    lines = REAL.splitlines()
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        what = draw(st.sampled_from(["drop", "double", "swap", "value", "insert", "indent", "cut"]))
        if what == "drop" and len(lines) > 1:
            del lines[at]
        elif what == "double":
            lines.insert(draw(st.integers(0, len(lines))), lines[at])
        elif what == "swap":
            other = draw(st.integers(0, len(lines) - 1))
            lines[at], lines[other] = lines[other], lines[at]
        elif what == "value":
            lines[at] = f"{lines[at].partition(':')[0]}: {draw(ODD)}"
        elif what == "insert":
            column = draw(st.integers(0, len(lines[at])))
            lines[at] = lines[at][:column] + draw(ODD) + lines[at][column:]
        elif what == "indent":
            lines[at] = " " * draw(st.integers(0, 12)) + lines[at].lstrip()
        elif what == "cut":
            lines[at] = lines[at][: draw(st.integers(0, len(lines[at])))]
    return "\n".join(lines)


EXAMPLES = int(os.environ.get("MATRIX_EXAMPLES", "300"))
"""Of damaged files. A hundred thousand take a quarter of an hour:
`MATRIX_EXAMPLES=100000 ./run test -- tests/build/test_matrix_files.py -k damaged_matrix`."""


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(text=damaged())
def test_a_damaged_matrix_is_an_error_or_a_matrix(tmp_path: Path, text: str) -> None:
    import jsonschema
    import yaml

    from build.matrix.schema import make_schema

    try:
        matrix = load_matrix(clone(tmp_path, text.encode("utf-8", "surrogatepass")))
    except MatrixError as error:
        assert str(error).encode(sys.stdout.encoding or "utf-8")
        assert error.exit_code == 2
        return
    assert isinstance(matrix, Matrix)
    jsonschema.validate(yaml.safe_load(text), make_schema())


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200))
def test_any_bytes_are_an_error(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(MatrixError):
        load_matrix(clone(tmp_path, data))
