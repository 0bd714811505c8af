"""Which of the images that a command line selects are here."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from build.containers import Engine
from build.errors import NothingSelected
from build.image.names import moving_tag


def built_here(engine: Engine, selected: Sequence[str], pattern: str) -> list[str]:
    """The images that a verb works on, of those that a pattern selects.

    What a glob selects and is not here is left out, and said; what is named stays, for the verb to say that it is not.

    Raises NothingSelected where nothing is left.
    """
    named = {word.strip() for word in pattern.split(",")}
    here = [name for name in selected if name in named or engine.image_id(moving_tag(name)) is not None]
    absent = [name for name in selected if name not in here]
    if absent:
        print(f"note: not built here, and left out: {', '.join(absent)}", file=sys.stderr, flush=True)
    if not here:
        raise NothingSelected(
            f"--image {pattern!r} selects no image that is here", next_step="./run build --image NAME"
        )
    return here
