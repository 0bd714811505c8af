"""Sources by hash, from an index of our own on the loopback, a folder, git, and the cache."""

import dataclasses
import hashlib
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from build.errors import BuildError, CellFailed, EnvironmentCannot, MatrixError
from build.matrix.model import Component, Source
from build.wheels import index
from build.wheels.fetch import fetch_source
from build.wheels.unpack import unpack
from tests.index_stand_in import NAME, Index


def sdist(extra: Callable[[tarfile.TarFile], None] | None = None, setup: bool = True) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        files = {"tiny_part-1.0/PKG-INFO": b"Name: tiny-part\n" * 400}
        if setup:
            files["tiny_part-1.0/setup.py"] = b"raise SystemExit('a source is never run when it is fetched')\n"
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        if extra is not None:
            extra(archive)
    return buffer.getvalue()


@pytest.fixture
def pypi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Index]:
    served = Index()
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_INDEX_URL", served.url)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(index, "PAUSES", (0.0, 0.0))
    yield served
    served.server.shutdown()
    served.server.server_close()


def pinned(data: bytes, **changes: str) -> Component:
    source = Source(pypi="Tiny.Part", version="1.0", sha256=hashlib.sha256(data).hexdigest())
    return Component("tiny", "Tiny", "wheel", "1.0", dataclasses.replace(source, **changes))


def test_a_file_is_fetched_once_and_verified_at_every_use(pypi: Index, capsys: pytest.CaptureFixture[str]) -> None:
    data = sdist()
    pypi.offers(data)
    path = fetch_source(pinned(data))
    assert path.read_bytes() == data and path.name == NAME
    asked = len(pypi.asked)
    assert fetch_source(pinned(data)) == path
    assert len(pypi.asked) == asked, "the second time comes from the cache"
    path.write_bytes(data[:-1])
    assert fetch_source(pinned(data)).read_bytes() == data
    assert "is damaged" in capsys.readouterr().err


def test_a_wrong_hash_in_the_matrix_is_told_with_what_the_index_offers(pypi: Index) -> None:
    data = sdist()
    pypi.offers(data)
    with pytest.raises(MatrixError) as caught:
        fetch_source(pinned(data, sha256="0" * 64))
    assert caught.value.exit_code == 2
    assert hashlib.sha256(data).hexdigest() in caught.value.cause
    assert "components.tiny.source.sha256" in caught.value.next_step
    assert f"/files/{NAME}" not in pypi.asked


def test_an_index_without_hashes_is_fetched_and_seen(pypi: Index) -> None:
    data = sdist()
    pypi.offers(data)
    html = f'<html><a href="../../files/{NAME}">x</a><a>nothing</a></html>'.encode()
    pypi.answers["/simple/tiny-part/"] = [(200, "text/html; charset=utf-8", html)]
    with pytest.raises(MatrixError, match="another sha256"):
        fetch_source(pinned(data, sha256="0" * 64))
    assert fetch_source(pinned(data)).read_bytes() == data


def test_html_with_hashes_will_do(pypi: Index) -> None:
    data = sdist()
    pypi.offers(data)
    html = f'<a href="/files/{NAME}#sha256={hashlib.sha256(data).hexdigest()}">x</a>'.encode()
    pypi.answers["/simple/tiny-part/"] = [(200, "text/html", html)]
    assert fetch_source(pinned(data)).read_bytes() == data


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"version": "9.9"}, "no file of Tiny.Part 9.9"), ({"pypi": "absent"}, "no project 'absent'")],
)
def test_what_the_index_does_not_have_is_named(pypi: Index, changes: dict[str, str], said: str) -> None:
    data = sdist()
    pypi.offers(data)
    with pytest.raises(EnvironmentCannot, match=said) as caught:
        fetch_source(pinned(data, sha256="0" * 64, **changes))
    assert "--offline" in caught.value.next_step


def test_what_may_pass_is_tried_again(pypi: Index) -> None:
    data = sdist()
    pypi.offers(data)
    whole = pypi.answers[f"/files/{NAME}"][0]
    pypi.answers["/simple/tiny-part/"].insert(0, (503, "text/plain", b"later"))
    pypi.answers[f"/files/{NAME}"] = [
        (200, "cut/short", data[: len(data) // 2]),
        (200, "x/y", data[:-3] + b"abc"),
        whole,
    ]
    assert fetch_source(pinned(data)).read_bytes() == data
    assert pypi.asked.count(f"/files/{NAME}") == 3


def test_a_download_that_never_comes_whole_leaves_nothing(pypi: Index, tmp_path: Path) -> None:
    data = sdist()
    pypi.offers(data)
    pypi.answers[f"/files/{NAME}"] = [(200, "cut/short", data[: len(data) // 2])]
    with pytest.raises(EnvironmentCannot, match="could not be downloaded") as caught:
        fetch_source(pinned(data))
    assert caught.value.exit_code == 4
    assert [path for path in (tmp_path / "cache/downloads").rglob("*") if path.is_file()] == []


def test_a_forbidden_file_is_not_asked_for_again(pypi: Index) -> None:
    data = sdist()
    pypi.offers(data)
    pypi.answers[f"/files/{NAME}"] = [(403, "text/plain", b"no")]
    with pytest.raises(EnvironmentCannot, match="403"):
        fetch_source(pinned(data))
    assert pypi.asked.count(f"/files/{NAME}") == 1


def test_no_network_is_told_without_the_password(pypi: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:geheim@127.0.0.1:9/simple/")
    with pytest.raises(EnvironmentCannot) as caught:
        fetch_source(pinned(sdist()))
    assert "127.0.0.1:9" in str(caught.value) and "geheim" not in str(caught.value)
    assert caught.value.next_step


def test_credentials_of_the_index_are_sent(pypi: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    data = sdist()
    pypi.offers(data)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://user:s%40me@{pypi.host}/simple")
    fetch_source(pinned(data))
    assert pypi.credentials == ["Basic dXNlcjpzQG1l"] * 2, "for the list, and for a file on the same host"


@pytest.mark.parametrize("redirected", [False, True])
def test_credentials_of_the_index_are_sent_to_no_other_host(
    pypi: Index, monkeypatch: pytest.MonkeyPatch, redirected: bool
) -> None:
    data, other = sdist(), Index()
    other.offers(data)
    pypi.offers(data)
    there = f"http://{other.host}/files/{NAME}"
    if redirected:
        pypi.answers[f"/files/{NAME}"] = [(302, "text/plain", there.encode())]
    else:
        file = {"filename": NAME, "url": there, "hashes": {"sha256": pinned(data).source.sha256}}
        page = json.dumps({"files": [file]}).encode()
        pypi.answers["/simple/tiny-part/"] = [(200, "application/vnd.pypi.simple.v1+json", page)]
    monkeypatch.setenv("PIP_INDEX_URL", f"http://user:s%40me@{pypi.host}/simple")
    try:
        fetch_source(pinned(data))
    finally:
        other.server.shutdown()
        other.server.server_close()
    assert other.credentials == [""]


def test_a_page_that_is_no_index_is_told(pypi: Index) -> None:
    pypi.answers["/simple/tiny-part/"] = [(200, "application/json", b'{"message": "hello"}')]
    with pytest.raises(EnvironmentCannot, match="not an index page"):
        fetch_source(pinned(sdist()))


# A folder instead of the network.


def test_a_folder_gives_files_by_hash_whatever_they_are_called(pypi: Index, tmp_path: Path) -> None:
    data = sdist()
    folder = tmp_path / "packs/deep"
    folder.mkdir(parents=True)
    (folder / "renamed.tar.gz").write_bytes(data)
    assert fetch_source(pinned(data), offline=tmp_path / "packs").read_bytes() == data
    assert pypi.asked == []


def test_a_folder_that_lacks_the_file_names_it_and_asks_no_network(pypi: Index, tmp_path: Path) -> None:
    data = sdist()
    pypi.offers(data)
    with pytest.raises(EnvironmentCannot, match=r"holds no Tiny\.Part 1\.0") as caught:
        fetch_source(pinned(data), offline=tmp_path)
    assert hashlib.sha256(data).hexdigest() in caught.value.next_step
    assert pypi.asked == []


def test_a_file_that_did_not_arrive_whole_is_told(pypi: Index, tmp_path: Path) -> None:
    data = sdist()
    (tmp_path / NAME).write_bytes(data[:-10])
    with pytest.raises(EnvironmentCannot, match="its sha256 differs"):
        fetch_source(pinned(data), offline=tmp_path)


# Git and folders.


def git(folder: Path, *words: str) -> str:
    identity = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    done = subprocess.run(
        ["git", *words], cwd=folder, env={**os.environ, **identity}, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_a_commit_becomes_the_same_tar_every_time(pypi: Index, tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    git(origin, "init", "-q")
    for text in ("old", "new"):
        (origin / "setup.py").write_text(f"# {text}\n")
        git(origin, "add", "setup.py")
        git(origin, "commit", "-q", "-m", text)
    first = git(origin, "rev-parse", "HEAD~1")
    component = Component("tiny", "Tiny", "wheel", "1.0", Source(git=f"file://{origin}", commit=first))
    path = fetch_source(component)
    before = path.read_bytes()
    tree = unpack(component, path, tmp_path / "tree")
    assert (tree / "setup.py").read_text() == "# old\n"
    assert not (tree / ".git").exists()
    path.write_bytes(b"damaged")
    assert fetch_source(component).read_bytes() == before
    wrong = dataclasses.replace(component, source=Source(git=f"file://{origin}", commit="1" * 40))
    with pytest.raises(EnvironmentCannot, match="could not be fetched"):
        fetch_source(wrong)


def test_a_path_without_setup_py_is_the_matrix_s_mistake(pypi: Index, tmp_path: Path) -> None:
    component = Component("tiny", "Tiny", "wheel", "1.0", Source(path="nowhere"))
    with pytest.raises(MatrixError, match=r"no setup\.py"):
        fetch_source(component, repository=tmp_path)


def test_a_folder_is_copied_without_what_tools_leave_and_only_what_is_named(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    for name in ("setup.py", "csrc/a.cpp", "csrc/__pycache__/x.pyc", "other/big.bin"):
        (origin / name).parent.mkdir(parents=True, exist_ok=True)
        (origin / name).write_text(name)
    part = Component("tiny", "Tiny", "wheel", "1.0", Source(path=".", include=("setup.py", "csrc")))
    tree = unpack(part, origin, tmp_path / "part")
    files = sorted(str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file())
    assert files == ["csrc/a.cpp", "setup.py"]
    whole = dataclasses.replace(part, source=Source(path="."))
    assert (unpack(whole, origin, tmp_path / "whole") / "other/big.bin").is_file()


# Archives that should not be trusted.


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> Callable[[tarfile.TarFile], None]:
    def add(archive: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.type = kind
        info.linkname = link
        info.size = 4 if kind == tarfile.REGTYPE else 0
        archive.addfile(info, io.BytesIO(b"evil") if kind == tarfile.REGTYPE else None)

    return add


def through_a_link(archive: tarfile.TarFile) -> None:
    member("tiny_part-1.0/a/link", tarfile.SYMTYPE, "..")(archive)
    member("tiny_part-1.0/link", tarfile.SYMTYPE, "a/link/../..")(archive)
    member("tiny_part-1.0/link/evil")(archive)


@pytest.mark.parametrize(
    "extra",
    [
        member("../evil"),
        member("tiny_part-1.0/../../evil"),
        member("/tmp/evil"),
        member("tiny_part-1.0/link", tarfile.SYMTYPE, "../../etc"),
        member("tiny_part-1.0/link", tarfile.SYMTYPE, "/etc/passwd"),
        member("tiny_part-1.0/hard", tarfile.LNKTYPE, "/etc/passwd"),
        member("tiny_part-1.0/device", tarfile.CHRTYPE),
        member("tiny_part-1.0/pipe", tarfile.FIFOTYPE),
        through_a_link,
    ],
)
def test_an_archive_that_reaches_outside_is_refused(tmp_path: Path, extra: Callable[[tarfile.TarFile], None]) -> None:
    archive = tmp_path / NAME
    archive.write_bytes(sdist(extra))
    with pytest.raises(CellFailed, match="is refused"):
        unpack(pinned(b""), archive, tmp_path / "a/b/tree")
    assert [path for path in tmp_path.rglob("evil") if path.is_file()] == []


def test_links_inside_and_modes_survive(tmp_path: Path) -> None:
    archive = tmp_path / NAME
    archive.write_bytes(sdist(member("tiny_part-1.0/docs/link", tarfile.SYMTYPE, "../PKG-INFO")))
    tree = unpack(pinned(b""), archive, tmp_path / "tree")
    assert (tree / "docs/link").read_text().startswith("Name: tiny-part")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (sdist()[:-20], "cannot be unpacked"),
        (sdist()[:60], "cannot be unpacked"),
        (b"", "cannot be unpacked"),
        (b"<html>not found</html>", "cannot be unpacked"),
        (sdist(setup=False), r"no setup\.py"),
    ],
)
def test_a_truncated_or_foreign_archive_is_told(tmp_path: Path, data: bytes, said: str) -> None:
    archive = tmp_path / NAME
    archive.write_bytes(data)
    with pytest.raises(CellFailed, match=said) as caught:
        unpack(pinned(b""), archive, tmp_path / "tree")
    assert isinstance(caught.value, BuildError) and caught.value.next_step
