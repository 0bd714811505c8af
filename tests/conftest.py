"""Which tests can be collected here, and what they all start from."""

from __future__ import annotations

import importlib.util
import signal

import pytest
from hypothesis import HealthCheck, settings

NEEDED = ("cyclonedx", "docker", "installer", "invoke", "jsonschema", "elftools", "yaml")
"""What the build system imports. A GPU machine that runs the engine's tests alone has no need of them."""
missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
collect_ignore_glob = ["build/*", "images/*"] if missing else []

# Hypothesis draws the same examples in every run, on every machine, and no clock judges them: a test that fails, fails
# for everybody. `./run test -- --hypothesis-profile=fresh` draws others each time, to find what these do not.
settings.register_profile(
    "fixed",
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("fresh", settings.get_profile("fixed"), derandomize=False)
settings.load_profile("fixed")


def pytest_configure() -> None:
    """A shell's background job ignores Ctrl-C, and so would every process that a test starts and interrupts."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say why tests of the build system are left out."""
    if not missing:
        return []
    return [f"tests/build and tests/images left out: {', '.join(missing)} not installed (`./run test` installs them)"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave GPU tests out where there is no GPU, and say so; `-m gpu` asks for them, and then they fail without one."""
    if "gpu" in (config.option.markexpr or ""):
        return
    here = [item for item in items if item.get_closest_marker("gpu") or item.get_closest_marker("multi_gpu")]
    if here and not _has_gpu():
        for item in here:
            item.add_marker(pytest.mark.skip(reason="needs a GPU, and PyTorch sees none"))


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()
