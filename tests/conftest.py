"""Which tests can be collected here."""

from __future__ import annotations

import importlib.util

import pytest

NEEDED = ("cyclonedx", "docker", "installer", "invoke", "jsonschema", "elftools", "yaml")
"""What the build system imports. A GPU machine that runs the engine's tests alone has no need of them."""
missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
collect_ignore_glob = ["build/*", "images/*"] if missing else []


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say why tests of the build system are left out."""
    if not missing:
        return []
    return [f"tests/build and tests/images left out: {', '.join(missing)} not installed (`./run test` installs them)"]
