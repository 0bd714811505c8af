"""One lock, several Pythons: each gets the wheels that it can import."""

from __future__ import annotations

import pytest

from build.locks import fits


@pytest.mark.parametrize(
    ("wheel", "python", "expected"),
    [
        ("rpds_py-1.0-cp311-cp311-manylinux_2_17_x86_64.whl", "3.11", True),
        ("rpds_py-1.0-cp311-cp311-manylinux_2_17_x86_64.whl", "3.12", False),
        ("rpds_py-1.0-cp313-cp313t-manylinux_2_17_x86_64.whl", "3.13", False),
        ("safetensors-1.0-cp38-abi3-manylinux_2_17_x86_64.whl", "3.13", True),
        ("tokenizers-1.0-cp313-abi3-manylinux_2_17_x86_64.whl", "3.11", False),
        ("requests-1.0-py3-none-any.whl", "3.13", True),
        ("six-1.0-py2.py3-none-any.whl", "3.12", True),
        ("old-1.0-py2-none-any.whl", "3.12", False),
        ("nvidia_nccl_cu13-2.32.3-py3-none-manylinux_2_18_x86_64.whl", "3.12", True),
    ],
)
def test_a_wheel_fits_the_pythons_that_can_import_it(wheel: str, python: str, expected: bool) -> None:
    assert fits(wheel, python) is expected
