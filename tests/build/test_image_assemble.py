"""What assembly says when it cannot: no space, a failed step, too much of ours. Real images are in tests/images."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from build.call import CallFailed
from build.errors import BuildError, GateFailed
from build.image.assemble import OURS_LIMIT, check_size, check_space, explain_failure
from build.image.collect import user_name
from build.image.parts import Part

STEP = '#15 [11/13] RUN "/usr/bin/python3" -I /dev/steps/lay.py system\n'


def failure(output: str, tmp_path: Path) -> BuildError:
    failed = CallFailed(["docker", "build", "."], 1, output, tmp_path / "log")
    return explain_failure("flagtree", failed, tmp_path / "log", tmp_path)


def test_a_full_engine_is_told_with_figures(tmp_path: Path) -> None:
    told = failure("#12 ERROR: write /var/lib/docker/x: no space left on device\n", tmp_path)
    assert told.exit_code == 4
    assert f"({tmp_path}: " in told.what
    assert "MB free)" in told.what


def test_a_step_that_says_why_it_failed_is_quoted(tmp_path: Path) -> None:
    told = failure(f"{STEP}#15 0.412 error: the base has no ldconfig\n#15 ERROR: exit code: 1\nfailed\n", tmp_path)
    assert told.cause == "the base has no ldconfig"
    assert told.log == tmp_path / "log"


@pytest.mark.parametrize(("output", "cause"), [("x\nlast words\n", "last words"), ("", "the engine said nothing")])
def test_else_its_last_words_are(tmp_path: Path, output: str, cause: str) -> None:
    assert failure(output, tmp_path).cause == cause


def test_space_is_asked_for_twice_and_only_for_what_the_engine_has_not_seen(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    huge = Part("nccl", tmp_path / "nccl.tar", free, fresh=True)
    with pytest.raises(BuildError, match="are needed") as told:
        check_space([huge], tmp_path)
    assert told.value.exit_code == 4
    check_space([dataclasses.replace(huge, fresh=False)], tmp_path)
    check_space([huge], None)


def test_more_of_ours_than_allowed_fails_as_a_gate_does() -> None:
    check_size("flagtree", {"ours": OURS_LIMIT})
    with pytest.raises(GateFailed, match=r"ours adds 60\.1 MB"):
        check_size("flagtree", {"ours": 60_100_000})


def test_a_user_is_named_only_where_the_base_names_none() -> None:
    assert user_name({"PATH": "/bin", "USER": ""}) == {"USER": "deepinfer"}
    assert user_name({"LOGNAME": "vendor"}) == {}
