"""Which cases the words of a command line mean."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from deepinfer.errors import UsageError
from deepinfer.ops import cases as cases_package
from deepinfer.ops.case import Case
from deepinfer.ops.cases import cases
from deepinfer.ops.names import ALL_FAMILIES, FAMILY_OF


def factories(names: Sequence[str]) -> list[str]:
    """The factories that families' names, factories' names and globs of both mean; all of them for no name.

    Raises:
        UsageError: a name means none; near ones are told.
    """
    chosen: set[str] = set()
    for name in names:
        found = {one for one, family in FAMILY_OF.items() if fnmatchcase(one, name) or fnmatchcase(family, name)}
        if not found:
            near = difflib.get_close_matches(name, [*ALL_FAMILIES, *FAMILY_OF], n=3, cutoff=0.5)
            raise UsageError(
                f"no family and no kernel is called {name!r}",
                next_step=f"did you mean {' or '.join(near)}?" if near else f"use some of: {', '.join(ALL_FAMILIES)}",
            )
        chosen |= found
    return [one for one in FAMILY_OF if one in chosen or not names]


def selected(names: Sequence[str]) -> list[Case]:
    """The cases of those factories."""
    wanted = factories(names)
    families = dict.fromkeys(FAMILY_OF[one] for one in wanted)
    return [case for case in cases(families) if case.factory in wanted]


def digests(chosen: Sequence[Case]) -> dict[str, str]:
    """For each family of these cases: a digest of the source that its inputs and judges come from."""
    folder = Path(cases_package.__file__).parent
    sources = sorted(folder.glob("*.py"))
    found = {}
    for family in dict.fromkeys(case.family for case in chosen):
        digest = hashlib.sha256()
        for path in sources:
            if _owner(path.stem) in (family, ""):
                digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        found[family] = digest.hexdigest()
    return found


def _owner(module: str) -> str:
    """The family that a module of the cases belongs to; '' for what families share."""
    owners = [family for family in ALL_FAMILIES if module == family or module.startswith(f"{family}_")]
    return max(owners, key=len, default="")
