"""What has to happen inside the image while it is made: run by the Dockerfile with the base's own Python, as root.

    lay.py remove FILE      remove what the patterns in FILE name (a line each): files that an overlay replaces
    lay.py compile FILE     byte-compile the folders and modules in FILE (a line each)
    lay.py system FILE      what FILE (JSON) says: folders and files that users may reach, libraries for the loader;
                            and the user

Standard library only, any Python >= 3.11. It ends with status 1 and a plain line when something cannot be done.
"""

from __future__ import annotations

import compileall
import json
import os
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

USER = "deepinfer"
USER_ID = 10001
HOME = "/home/deepinfer"
LOADER_CONF = Path("/etc/ld.so.conf")
LOADER_ENTRY = Path("/etc/ld.so.conf.d/zz-deepinfer.conf")


def fail(what: str) -> NoReturn:
    """End with a line that the builder shows."""
    print(f"error: {what}", file=sys.stderr)
    raise SystemExit(1)


def remove(listed: str) -> None:
    """Remove files and folders by pattern; a pattern that matches nothing is no error."""
    for pattern in listed.splitlines():
        for path in Path("/").glob(pattern.lstrip("/")):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def compile_modules(listed: str) -> None:
    """Byte-compile for this Python: the image's users cannot write beside the sources, so it is now or at every start.

    The files are not checked against their sources later: layers carry times of their own.
    """
    for name in listed.splitlines():
        path = Path(name)
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        if path.is_dir():
            compileall.compile_dir(path, quiet=1, invalidation_mode=mode)
        elif path.suffix == ".py":
            compileall.compile_file(path, quiet=1, invalidation_mode=mode)


def add_user(root: Path = Path("/")) -> None:
    """Add the user to passwd and group, as useradd would, which a small base may lack."""
    lines = {
        "etc/passwd": f"{USER}:x:{USER_ID}:{USER_ID}:DeepInfer:{HOME}:/usr/sbin/nologin",
        "etc/group": f"{USER}:x:{USER_ID}:",
    }
    for name, line in lines.items():
        path = root / name
        text = path.read_text() if path.exists() else ""
        taken = [entry for entry in text.splitlines() if entry.split(":")[0] == USER]
        if taken and taken[0].split(":")[2] != str(USER_ID):
            fail(f"the base has a {USER!r} in /{name} already, with another number: {taken[0]}")
        if not taken:
            text += "" if not text or text.endswith("\n") else "\n"
            path.write_text(f"{text}{line}\n")


def open_to_users(ways: dict[str, list[str]]) -> None:
    """Let everybody pass the folders of "pass" and read what "read" names: the base's Python must work for them."""
    for way, bits in (("pass", 0o011), ("read", 0o044)):
        for name in ways.get(way, []):
            path = Path(name)
            if not path.exists():
                fail(f"{path} is not in the base any more; inspect it again")
            mode = path.stat().st_mode & 0o7777
            runs = 0o011 if way == "read" and (path.is_dir() or mode & 0o100) else 0
            path.chmod(mode | bits | runs)


def copy_libraries(libraries: list[dict[str, str]]) -> None:
    """Copy libraries of the base to where any user can read them, each with a link of its soname."""
    for library in libraries:
        source, target = Path(library["source"]), Path(library["target"])
        if not source.is_file():
            fail(f"{source} is not in the base any more; inspect it again")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(0o755)
        link = target.with_name(library["soname"])
        if link != target:
            link.unlink(missing_ok=True)
            link.symlink_to(target.name)


def tell_loader(folders: list[str]) -> None:
    """Put folders into the loader's configuration and renew its cache."""
    LOADER_ENTRY.parent.mkdir(parents=True, exist_ok=True)
    LOADER_ENTRY.write_text("".join(f"{folder}\n" for folder in folders))
    text = LOADER_CONF.read_text() if LOADER_CONF.exists() else ""
    if not any(line.split()[:1] == ["include"] and "ld.so.conf.d" in line for line in text.splitlines()):
        LOADER_CONF.write_text(f"{text}include {LOADER_ENTRY.parent}/*.conf\n")
    path = f"/usr/sbin:/sbin:{os.environ.get('PATH', '')}"
    tool = shutil.which("ldconfig", path=path)
    if tool is None:
        fail("the base has no ldconfig, so the loader's cache cannot be renewed")
    done = subprocess.run([tool], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        fail(f"ldconfig failed: {done.stderr.strip()}")


def system(described: str) -> None:
    """The last of the preparations: what users may reach, the user, libraries, loader."""
    prepared = json.loads(described)
    libraries: list[dict[str, str]] = prepared["libraries"]
    open_to_users(prepared["opened"])
    add_user()
    if libraries:
        copy_libraries(libraries)
        tell_loader(sorted({str(Path(library["target"]).parent) for library in libraries}))


def main() -> None:
    """Carry out one verb."""
    verb, listed = sys.argv[1], Path(sys.argv[2]).read_text()
    {"remove": remove, "compile": compile_modules, "system": system}[verb](listed)


if __name__ == "__main__":
    main()
