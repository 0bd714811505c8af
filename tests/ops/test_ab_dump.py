"""Dumps: what they keep, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.errors import UsageError
from deepinfer.ops.ab.__main__ import main
from deepinfer.ops.ab.portable.read import Reader
from deepinfer.ops.ab.portable.values import FILE, DumpError, Value, decoded, encoded
from deepinfer.ops.ab.portable.write import constants, written
from deepinfer.ops.ab.selection import selected
from deepinfer.ops.ab.sides import Dumped
from deepinfer.ops.execution import relocated, run
from tests.ops.test_ab import _interpreted

SIDE = {"backend": "mine", "device": "cpu"}


@dataclasses.dataclass(frozen=True)
class Layout:
    name: str
    sizes: tuple[int, ...]
    scale: float


def _values() -> list[Value]:
    """Two views of one pool, a seed of 64 bits, an FP8 tensor, nothing, a number, empty tensors."""
    pool = torch.arange(40, dtype=torch.int32)
    return [
        Value("a", False, pool[3:30:4]),
        Value("b", True, pool.view(5, 8)[1:, ::3]),
        Value("seed", False, torch.tensor([-1, 5]).view(torch.uint64)),
        Value("q", True, torch.tensor([1.0, -448.0]).to(torch.float8_e4m3fn)),
        Value("none", False, None),
        Value("n", False, 2**63),
        Value("empty", True, torch.zeros(0, 4, dtype=torch.bfloat16)),
        Value("bias", False, -0.0),
        Value("right half of none", False, torch.zeros(0, 8)[:, 4:]),
    ]


def _write(folder: Path, before: list[Value], after: list[Value] | None = None, **options: Any) -> Reader:
    with written(folder, SIDE, {"gather": "digest"}) as writer:
        parameters = constants((3, torch.int8, ("x", None), Layout("v41", (1, 2), 0.1)), {"flag": True})
        writer.add("gather_tl", "one", *parameters, before, after or before, **options)
    return Reader(folder)


def test_everything_comes_back(tmp_path: Path) -> None:
    before = _values()
    after = [dataclasses.replace(one) for one in before]
    changed = before[0].value.as_strided((40,), (1,), 0).clone()
    changed[8] = -7
    after[0] = Value("a", False, changed[3:30:4])
    after[1] = Value("b", True, changed.view(5, 8)[1:, ::3])
    reader = _write(tmp_path, before, after)
    call = reader.calls["gather_tl", "one"]
    assert reader.side == SIDE and reader.sources == {"gather": "digest"} and call.error == ""
    for when, expected in (("before", before), ("after", after)):
        for found, own in zip(reader.arguments(call, when), expected, strict=True):
            assert (found.name, found.output) == (own.name, own.output)
            if isinstance(own.value, torch.Tensor):
                assert found.value.dtype == own.value.dtype and found.value.stride() == own.value.stride()
                assert found.value.storage_offset() == own.value.storage_offset()
                assert found.value.contiguous().view(torch.uint8).equal(own.value.contiguous().view(torch.uint8))
            else:
                assert repr(found.value) == repr(own.value)
    a, b = (one.value for one in reader.arguments(call, "before")[:2])
    assert a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    assert a.data_ptr() % 4 == 0 and a.untyped_storage().data_ptr() % 16 == 0


def test_parameters_come_back_and_dataclasses_by_who_asks(tmp_path: Path) -> None:
    reader = _write(tmp_path, [])
    call = reader.calls["gather_tl", "one"]
    parameters, named = reader.constants(call, lambda kind, fields: {"Layout": Layout}[kind](**fields))
    assert parameters == [3, torch.int8, ("x", None), Layout("v41", (1, 2), 0.1)] and named == {"flag": True}
    assert reader.constants(call)[0][3].sizes == (1, 2)


def test_what_is_the_same_is_kept_once_and_packed(tmp_path: Path) -> None:
    big = torch.zeros(1 << 20, dtype=torch.int8)
    _write(tmp_path, [Value("x", False, big), Value("y", True, big.clone())])
    with zipfile.ZipFile(tmp_path / FILE) as archive:
        assert len([name for name in archive.namelist() if name.startswith("blob/")]) == 1
    assert (tmp_path / FILE).stat().st_size < 10_000


@settings(max_examples=60)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
        lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple),
        max_leaves=8,
    )
)
def test_values_survive_json(value: Any) -> None:
    again = decoded(json.loads(json.dumps(encoded(value))), lambda *_: None)
    assert again == value and type(again) is type(value)


def test_what_cannot_travel_is_refused() -> None:
    with pytest.raises(TypeError, match="a set cannot be written"):
        encoded({1, 2})


def test_an_interrupted_dump_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), written(tmp_path, SIDE, {}) as writer:
        writer.add("gather_tl", "one", [], {}, _values())
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


# ---- refused


def _header(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """A damage that rewrites the header."""

    def damage(path: Path) -> None:
        with zipfile.ZipFile(path) as archive:
            held = {name: archive.read(name) for name in archive.namelist()}
        header = json.loads(held.pop("header.json"))
        change(header)
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in {**held, "header.json": json.dumps(header).encode()}.items():
                archive.writestr(name, data)

    return damage


def _argument(**changes: Any) -> Callable[[Path], None]:
    return _header(lambda header: header["calls"][0]["arguments"][0]["value"].update(changes))


def _storage(**changes: Any) -> Callable[[Path], None]:
    return _header(lambda header: header["calls"][0]["storages"][0].update(changes))


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[60] ^= 0xFF
    path.write_bytes(data)


def _nested(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("header.json", "[" * 200_000)


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda path: path.write_bytes(b""), "not a zip file"),
        (lambda path: path.write_bytes(b"\x80\x04pickled"), "not a zip file"),
        (_cut, "not a zip file"),
        (_flip, ""),
        (_nested, "nested too deeply"),
        (_header(lambda h: h.update(format="other")), "not one of this project's"),
        (_header(lambda h: h.update(version=2)), "its version is 2, and 1 is what can be read here"),
        (_header(lambda h: h.update(version=True)), "its version is True"),
        (_header(lambda h: h.pop("side")), "bad versions"),
        (_header(lambda h: h.update(side={"backend": 3})), "bad versions"),
        (_header(lambda h: h.update(calls={})), "a list is missing"),
        (_header(lambda h: h["calls"].append(3)), "a call is not an object"),
        (_header(lambda h: h["calls"].append(h["calls"][0])), "occurs twice"),
        (_header(lambda h: h["calls"][0].update(factory=None)), "bad names"),
        (_header(lambda h: h["calls"][0].pop("arguments")), "a list is missing"),
        (_header(lambda h: h["calls"][0]["arguments"][0].pop("output")), "lacks whether it is written"),
        (_header(lambda h: h["calls"][0].update(parameters=[{"code": "import os"}])), "there is no such value"),
        (_argument(tensor="Tensor"), "has no dtype 'Tensor'"),
        (_argument(tensor=["int8"]), "has no dtype"),
        (_argument(shape=[11]), "lies outside of its storage"),
        (_argument(offset=34), "lies outside of its storage"),
        (_argument(offset=-1), "bad number -1"),
        (_argument(stride=[2**40]), "lies outside of its storage"),
        (_argument(stride=[1, 1]), "do not fit each other"),
        (_argument(shape=[2**40], stride=[0]), "is too large"),
        (_argument(shape=[True]), "bad number True"),
        (_argument(storage=99), "bad number 99"),
        (_argument(storage=-1), "bad number -1"),
        (_storage(bytes=7), "larger than it should be"),
        (_storage(bytes=10**15), "bad number"),
        (_storage(before="../../etc/passwd"), "no sha256"),
        (_storage(before="0" * 64), "lacks"),
        (lambda path: _swap_blobs(path), "not those of its sha256"),
    ],
)
def test_a_damaged_or_hostile_dump_is_refused(tmp_path: Path, damage: Callable[[Path], None], text: str) -> None:
    _write(tmp_path, _values()).close()
    damage(tmp_path / FILE)
    with pytest.raises(DumpError, match="is no dump that can be used") as caught:
        reader = Reader(tmp_path)
        for call in reader.calls.values():
            reader.constants(call)
            reader.arguments(call, "before")
    assert text in str(caught.value)


def _swap_blobs(path: Path) -> None:
    """Give every storage other bytes of the same size."""
    with zipfile.ZipFile(path) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in held.items():
            archive.writestr(name, data if name == "header.json" else bytes(len(data)))


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / FILE, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", b" " * (65 << 20))
    with pytest.raises(DumpError, match="larger than it should be"):
        Reader(tmp_path)


def test_a_folder_without_a_dump_is_told(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(DumpError, match=r"holds no dump: there is no file calls\.zip"):
        Reader(tmp_path)


# ---- as the harness uses them


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the reference makes of gather's cases."""
    folder = tmp_path_factory.mktemp("dump")
    assert main(["gather", "--got", "reference", "--device", "cpu", "--dump", str(folder)]) == 0
    return folder


def _rewritten(dump: Path, to: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    to.mkdir()
    (to / FILE).write_bytes((dump / FILE).read_bytes())
    _header(change)(to / FILE)
    return to


def test_a_dump_compares_elsewhere(dump: Path) -> None:
    done = _interpreted("gather", "--compare", dump)
    assert done.returncode == 0, done.stderr
    assert "expected: reference" in done.stdout and "AB_OK: 16 cases of 1 kernels agree" in done.stdout


def test_a_dump_of_the_very_same_side_is_refused(dump: Path) -> None:
    with pytest.raises(UsageError, match="both sides are reference"):
        main(["gather", "--got", "reference", "--device", "cpu", "--compare", str(dump)])


def _compare(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The reference against a dump that says it is of another device."""
    code = main(["gather", "--got", "reference", "--device", "cpu", "--compare", str(folder)])
    return code, capsys.readouterr().out


def test_what_differs_from_a_dump_is_in_the_table(
    dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(header: dict[str, Any]) -> None:
        header["side"]["device"] = "another"
        one, two, three, four = header["calls"][:4]
        one["error"] = "RuntimeError: lost"
        two["parameters"][0] = 34
        three["arguments"][0]["name"] = "z"
        for storage in four["storages"]:
            storage["after"] = storage["before"]
        header["calls"].pop()

    code, out = _compare(_rewritten(dump, tmp_path / "d", change), capsys)
    assert code == 1 and "AB_DIFFERS: 5 of 16 cases" in out
    for text in (
        "gather_tl/odd-i32              expected side: RuntimeError: lost",
        "the dump has other compile-time parameters",
        "the dump has other arguments: ('z'",
        "y: largest error",
        "gather_tl/zero-rows-i64-outside  the dump does not have it, and no reason is listed",
    ):
        assert " ".join(text.split()) in " ".join(out.split())


def test_a_dump_of_other_cases_is_refused(dump: Path, tmp_path: Path) -> None:
    folder = _rewritten(dump, tmp_path / "d", lambda header: header["sources"].update(gather="0" * 64))
    with pytest.raises(UsageError, match="the cases of gather are not those") as caught:
        main(["gather", "--got", "reference", "--device", "cpu", "--compare", str(folder)])
    assert "made by deepinfer" in caught.value.cause


def test_the_dump_s_inputs_are_used_not_fresh_ones(dump: Path) -> None:
    case = selected(["gather"])[0]
    reader = Reader(dump)
    call = Dumped(reader).call(case)
    assert call.arguments[0].value.equal(case.call().arguments[0].value)
    outcome = Dumped(reader).outcome(case, call)
    own = run(case.factory, relocated(call, "cpu"), "reference", "cpu")
    assert outcome.results["y"].equal(own.results["y"]) and not call.arguments[2].value.equal(own.results["y"])


def test_no_dump_is_written_when_a_case_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from deepinfer.ops.reference import gather

    def gather_tl(*_: object) -> None:
        raise RuntimeError("no such width")

    gather_tl.__module__ = "deepinfer.ops.reference.gather"
    monkeypatch.setattr(gather, "gather_tl", gather_tl)
    assert main(["gather", "--got", "reference", "--device", "cpu", "--dump", str(tmp_path / "d")]) == 1
    assert "16 of 16 cases failed: no dump was written" in capsys.readouterr().err
    assert list((tmp_path / "d").iterdir()) == []
