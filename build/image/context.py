"""The build context: the common Dockerfile with the lines of this base, the parts, and the lists of their steps."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from build import cache
from build.image.parts import ORDER, Part, out_of_space

DOCKERFILE = cache.REPOSITORY / "images" / "Dockerfile"
LAY = Path(__file__).with_name("lay.py")


def render_dockerfile(text: str, *, python: str, environment: Mapping[str, str], shell: Sequence[str] = ()) -> str:
    """The Dockerfile with the lines that a file common to all images cannot hold.

    Exec form and quoting are JSON's, in which Docker reads them; a `$` would be expanded and is escaped. `shell` is the
    base's own SHELL, which the image keeps for those who derive from it; the steps here run in the usual one.
    """
    check = json.dumps([python, "-c", "import deepinfer"])
    lines = [f"HEALTHCHECK --interval=60s --timeout=60s --start-period=60s CMD {check}"]
    lines += [f"ENV {name}={json.dumps(value).replace('$', chr(92) + '$')}" for name, value in environment.items()]
    lines += [f"SHELL {json.dumps(list(shell))}"] if shell else []
    return "\n".join([text.rstrip("\n"), *lines, ""])


@contextlib.contextmanager
def context(
    target: str,
    parts: Sequence[Part],
    *,
    python: str,
    environment: Mapping[str, str],
    prepared: Mapping[str, object],
    shell: Sequence[str] = (),
) -> Iterator[Path]:
    """A folder of the cache with everything that the engine needs to make the image; removed in the end.

    prepared: what lay.py does in the end: `libraries` to copy, what is `opened` to users.

    Its name is fixed by the image's, so that the engine knows which archives it has already; what a killed run left
    there goes first. Archives are hard links into the cache: nothing is copied.

    Raises EnvironmentCannot when the disk is full.
    """
    folder = cache.folder("contexts") / target
    shutil.rmtree(folder, ignore_errors=True)
    try:
        _fill(folder, parts, prepared)
        (folder / "Dockerfile").write_text(
            render_dockerfile(DOCKERFILE.read_text(), python=python, environment=environment, shell=shell)
        )
        yield folder
    except OSError as problem:
        raise out_of_space(folder.parent, problem) from problem
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fill(folder: Path, parts: Sequence[Part], prepared: Mapping[str, object]) -> None:
    steps = folder / "steps"
    steps.mkdir(parents=True)
    shutil.copyfile(LAY, steps / "lay.py")
    by_name = {part.name: part for part in parts}
    for name in ORDER:
        os.link(by_name[name].archive, folder / f"{name}.tar")
    for name in ("runtime", "ours", "deepinfer"):
        (steps / f"compile-{name}").write_text(_lines(by_name[name].modules))
    (steps / "remove-nccl").write_text(_lines(by_name["nccl"].removes))
    (steps / "system.json").write_text(json.dumps(prepared, indent=1, sort_keys=True))


def _lines(words: Sequence[str]) -> str:
    return "".join(f"{word}\n" for word in words)
