"""What the tests of the kernels share: Triton's interpreter, which has to be chosen before Triton is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

pytest.register_assert_rewrite("tests.ops.three_ways", "tests.ops.sampling_checks")

from tests.ops.compiler import SUMMARY  # noqa: E402
from tests.ops.interpreter import Interpreter  # noqa: E402


@pytest.fixture(scope="session")
def interpreted(request: pytest.FixtureRequest) -> Iterator[Callable[[str], dict[str, list[str]]]]:
    """Results of the Triton backend in the interpreter against the reference, by family: FACTORY/CASE -> problems.

    The families of the tests that were collected are run ahead, two at a time, in the order of their tests.
    """
    families: dict[str, None] = {}
    for item in request.session.items:
        case = getattr(item, "callspec", None) and item.callspec.params.get("case")
        if case is not None and "interpreted" in getattr(item, "fixturenames", ()):
            families[case.family] = None
    interpreter = Interpreter(list(families))
    try:
        yield interpreter.results
    finally:
        interpreter.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell how many variants were compiled."""
    for line in SUMMARY:
        terminalreporter.write_line(line)
