"""Print the table of variables: `python -m deepinfer.envs --markdown` makes docs/environment.md."""

from __future__ import annotations

import argparse
import sys

from deepinfer import envs

HEAD = """\
# Environment variables

Generated from `deepinfer/envs` by `python -m deepinfer.envs --markdown`; change it there.
An empty value counts as unset. `deepinfer env` shows the values in effect and where each comes from.
"""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _own(reader: str) -> list[str]:
    lines = ["| name | type | default | meaning |", "|---|---|---|---|"]
    for variable in envs.VARIABLES:
        if variable.reader == reader:
            kind, default = f"{variable.kind.name}", _cell(variable.shown_default)
            lines.append(f"| `{variable.name}` | {kind} | {default} | {_cell(variable.meaning)} |")
    return lines


def _kinds() -> list[str]:
    kinds = {variable.kind.name: variable.kind.allowed for variable in envs.VARIABLES}
    return [f"- {name}: {allowed}" for name, allowed in sorted(kinds.items())]


def markdown() -> str:
    """The whole page."""
    foreign = ["| name | given by `import deepinfer` | meaning |", "|---|---|---|"]
    foreign += [
        f"| `{variable.name}` | {'yes' if variable in envs.GIVEN else ''} | {_cell(variable.meaning)} |"
        for variable in envs.FOREIGN
    ]
    parts = [
        HEAD,
        "## Read by the engine\n", *_own("engine"), "",
        "## Read by the build system and setup.py\n", *_own("build"), "",
        "## Types\n", *_kinds(), "",
        "## Of other programs\n",
        "`import deepinfer` gives some of them a value where the user has not; the others are only shown.\n",
        *foreign,
    ]  # fmt: skip
    return "\n".join(parts) + "\n"


def main() -> int:
    """Print the page."""
    parser = argparse.ArgumentParser(prog="python -m deepinfer.envs", description=__doc__)
    parser.add_argument("--markdown", action="store_true", required=True, help="print docs/environment.md")
    parser.parse_args()
    sys.stdout.write(markdown())
    return 0


sys.exit(main())
