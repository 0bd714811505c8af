"""A Python that only root can reach: a virtual environment in root's home, files that an installer made private.

Images here run as a user without rights, so what the base's Python needs is opened: folders on the way may be passed
(not listed), and private files of the Python itself may be read. Nothing becomes public by that which whoever has the
image has not already. Each opened file is copied into a layer of ours, so beyond a limit the build stops instead.
"""

from __future__ import annotations

from build.errors import EnvironmentCannot
from build.inspection import Inspection

LIMIT_BYTES = 20_000_000
LIMIT_FILES = 2000


def check_reach(inspection: Inspection) -> None:
    """Raise EnvironmentCannot where opening the base's Python would copy more than the limits into the image."""
    count, size = len(inspection.unreadable), inspection.unreadable_bytes
    if count <= LIMIT_FILES and size <= LIMIT_BYTES:
        return
    many = f"{LIMIT_FILES} or more" if count > LIMIT_FILES else str(count)
    raise EnvironmentCannot(
        f"{inspection.reference}: only root can read the Python at {inspection.executable}: {many} of its files "
        f"({size / 1e6:.0f} MB), such as {inspection.unreadable[0]}, are closed to other users",
        cause="it was installed under a umask of 077; opening the files here would put a copy of each into the image",
        next_step="have the base made readable where it is made (`chmod -R go+rX` on that folder, in the step that "
        "installs it), or use `--base replica`",
    )


def opened(inspection: Inspection) -> dict[str, list[str]]:
    """What is opened, for lay.py and image.json: `pass` (folders) and `read` (files and folders); {} if nothing."""
    found = {"pass": list(inspection.closed), "read": list(inspection.unreadable)}
    return {way: paths for way, paths in found.items() if paths}
