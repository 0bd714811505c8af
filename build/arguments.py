"""How the build system's lesser programs (`python -m build.…`, benchmarks/build.py) read their options.

Standard library only: `build.gpu` runs on machines that have nothing else.
"""

from __future__ import annotations

import argparse
import difflib
import re
from typing import NoReturn

from build.errors import UsageError


class Parser(argparse.ArgumentParser):
    """argparse exits 2 on a usage error and names no near option; here it is a UsageError, as of the verbs."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError, with the nearest option where one is unknown."""
        step = f"{self.prog} --help"
        unknown = re.fullmatch(r"unrecognized arguments: (?:.*? )??(-[^ =]+).*", message, re.DOTALL)
        if unknown is None:
            raise UsageError(message, next_step=step)
        near = difflib.get_close_matches(unknown[1], self._options(), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"{self.prog} has no option {unknown[1]!r}{hint}", next_step=f"{step} lists what there is")

    def _options(self) -> list[str]:
        """All options, those of sub-commands too: they leave it to their parent to tell what is unknown."""
        found = list(self._option_string_actions)
        for action in self._get_positional_actions():
            if isinstance(action.choices, dict):
                found += [option for command in action.choices.values() for option in command._option_string_actions]
        return found
