"""The jobs of continuous integration: runners with room, few enough jobs, a workflow that follows from the matrix."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
from collections import Counter
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from build.ci import command, workflow
from build.ci.jobs import HOSTED, LIMIT, Job, as_github, as_json, make_jobs, room_gb, runner_labels, shard
from build.errors import MatrixError, NothingSelected
from build.matrix.generated import generate
from build.matrix.load import load_matrix
from build.matrix.model import Matrix, Replica, Target

REPLICA = Replica("trixie", "3.13", "images/cpu/replica.lock", ("python3",))


def matrix_of(*targets: Target) -> Matrix:
    return Matrix({}, {target.name: target for target in targets})


def image(name: str, **changes: Any) -> Target:
    return Target(**{"name": name, "title": name, "kind": "image", "components": (), "replica": REPLICA, **changes})


def workflow_of(text: str) -> dict[str, Any]:
    return dict(yaml.safe_load(text))


def test_every_base_of_every_image_has_a_job_and_the_host_none() -> None:
    matrix = load_matrix()
    jobs = make_jobs(matrix, list(matrix.targets))
    expected = Counter(
        (name, kind)
        for name, target in matrix.targets.items()
        for kind, there in (("vendor", target.vendor), ("replica", target.replica))
        if target.kind == "image" and there is not None
    )
    assert Counter((job.images[0], job.base) for job in jobs) == expected


def test_a_vendors_base_of_42_gb_is_for_no_hosted_runner() -> None:
    target = load_matrix().targets["flagtree"]
    assert target.vendor_gb == 42
    labels = runner_labels(target, "vendor")
    assert "self-hosted" in labels and "disk-128gb" in labels
    assert room_gb(target, "vendor") > 42 + room_gb(load_matrix().targets["cpu"], "replica")
    assert runner_labels(load_matrix().targets["cpu"], "replica") == HOSTED


@pytest.mark.parametrize(("size", "label"), [(1.0, "disk-32gb"), (30.0, "disk-64gb"), (480.0, "disk-512gb")])
def test_the_label_follows_from_the_room(size: float, label: str) -> None:
    assert label in runner_labels(image("x", vendor="a/b:c", vendor_gb=size), "vendor")


def test_the_labels_in_the_matrix_come_first() -> None:
    target = image("x", vendor="a/b:c", vendor_gb=42, runner=("self-hosted", "big"))
    assert runner_labels(target, "vendor") == ("self-hosted", "big")


def test_a_base_for_which_no_runner_is_large_enough() -> None:
    with pytest.raises(MatrixError, match="x on its vendor base takes 9023 GB") as caught:
        runner_labels(image("x", vendor="a/b:c", vendor_gb=9000), "vendor")
    assert "runner" in caught.value.next_step


def test_pull_requests_get_hosted_runners_only() -> None:
    matrix = load_matrix()
    jobs = make_jobs(matrix, list(matrix.targets), hosted_only=True)
    assert [job.name for job in jobs] == ["cpu (replica)"]
    assert all(job.runs_on == HOSTED for job in jobs)


@pytest.mark.parametrize("count", [1, 255, 256, 257, 300, 1000])
def test_never_more_jobs_than_github_runs_and_every_image_once(count: int) -> None:
    matrix = matrix_of(*(image(f"i{number}") for number in range(count)))
    jobs = make_jobs(matrix, list(matrix.targets))
    assert len(jobs) == count if count <= LIMIT else LIMIT / 2 < len(jobs) <= LIMIT
    assert [name for job in jobs for name in job.images] == list(matrix.targets)
    sizes = [len(job.images) for job in jobs]
    assert max(sizes) - min(sizes) <= 1
    assert len({job.name for job in jobs}) == len(jobs)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["vendor", "replica"])), max_size=60), st.integers(8, 20))
def test_shards_mix_no_runners_and_lose_nothing(kinds: list[tuple[int, Any]], limit: int) -> None:
    single = [Job((f"i{n}",), base, (f"label-{kind}",), 10 + n, 60) for n, (kind, base) in enumerate(kinds)]
    jobs = shard(single, limit)
    assert len(jobs) <= limit
    where = {job.images[0]: (job.base, job.runs_on) for job in single}
    for job in jobs:
        assert {where[name] for name in job.images} == {(job.base, job.runs_on)}
        assert job.disk_gb == max(one.disk_gb for one in single if one.images[0] in job.images)
    assert sorted(name for job in jobs for name in job.images) == sorted(where)


def test_a_hosted_shard_asks_for_no_more_time_than_there_is() -> None:
    single = [Job((f"i{n}",), "replica", HOSTED, 10, 120) for n in range(12)]
    assert {job.timeout_minutes for job in shard(single, 2)} == {360}


def test_more_kinds_of_runners_than_jobs() -> None:
    single = [Job((f"i{n}",), "replica", (f"label-{n}",), 10, 60) for n in range(5)]
    with pytest.raises(MatrixError, match="5 kinds of runners"):
        shard(single, 4)


def test_the_form_for_github_is_one_line_of_texts_and_lists(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run("*", form="github", base="all", hosted=False, check=False) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    rows = json.loads(out)["include"]
    assert {"name", "images", "base", "runs_on", "disk_gb", "timeout_minutes", "hosted"} == set(rows[0])
    assert all(isinstance(row["images"], str) and isinstance(row["runs_on"], list) for row in rows)


def test_the_form_for_programs_selects(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run("fla*", form="json", base="vendor", hosted=False, check=False) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["limit"] == 256
    assert [job["images"] for job in told["jobs"]] == [["flagtree"], ["flagos"]]


@pytest.mark.parametrize(
    ("pattern", "base", "hosted"), [("host", "all", False), ("cpu", "vendor", False), ("flagtree", "all", True)]
)
def test_a_selection_without_jobs_is_told(pattern: str, base: str, hosted: bool) -> None:
    with pytest.raises(NothingSelected, match="no job is left"):
        command.run(pattern, form="table", base=base, hosted=hosted, check=False)


def test_both_forms_tell_the_same_jobs() -> None:
    matrix = load_matrix()
    jobs = make_jobs(matrix, list(matrix.targets))
    github, programs = as_github(jobs)["include"], as_json(jobs)["jobs"]
    assert [row["images"].split() for row in github] == [row["images"] for row in programs]


def test_the_workflow_file_follows_from_the_matrix() -> None:
    command.check_generated()


def test_a_changed_workflow_is_noticed(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text = workflow.workflow_text()
    monkeypatch.setattr("build.matrix.generated.REPOSITORY", tmp_path)
    changed = tmp_path / "images.yml"
    changed.write_text(text.replace("fail-fast: false", "fail-fast: true"))
    with pytest.raises(MatrixError, match="does not follow") as caught:
        generate(changed, text, "build.ci.workflow", check=True)
    assert "build.ci.workflow" in caught.value.next_step
    changed.write_text(text)
    generate(changed, text, "build.ci.workflow", check=True)


def test_another_image_is_another_workflow() -> None:
    matrix = load_matrix()
    more = dataclasses.replace(matrix, targets={**matrix.targets, "new": image("new")})
    assert workflow.make_workflow(more) != workflow.make_workflow(matrix)
    assert "new (replica)" in workflow.make_workflow(more)


def test_the_workflow_takes_no_action_from_elsewhere_and_few_rights() -> None:
    made = workflow_of(workflow.workflow_text())
    steps = [step for job in made["jobs"].values() for step in job["steps"]]
    assert steps and not any("uses" in step for step in steps)
    assert made["permissions"] == {"contents": "read"}
    secrets = [step for step in steps if "secrets." in json.dumps(step)]
    assert len(secrets) == 1


def test_values_reach_the_shell_as_variables_only() -> None:
    made = workflow_of(workflow.workflow_text())
    for job in made["jobs"].values():
        for step in job["steps"]:
            assert "${{" not in step["run"], step["name"]
            assert step["run"].startswith("set -euo pipefail\n")


def test_the_workflow_runs_what_the_plan_gives() -> None:
    made = workflow_of(workflow.workflow_text())
    build = made["jobs"]["build"]
    assert build["strategy"]["matrix"] == "${{ fromJSON(needs.plan.outputs.matrix) }}"
    assert build["runs-on"] == "${{ matrix.runs_on }}"
    used = set(
        re.findall(
            r"matrix\.([a-z_]+)", json.dumps({key: build[key] for key in ("name", "runs-on", "timeout-minutes", "env")})
        )
    )
    assert used <= set(as_github(make_jobs(load_matrix(), ["cpu"]))["include"][0])


def test_the_scripts_are_bash() -> None:
    bash = shutil.which("bash")
    assert bash is not None
    for job in workflow_of(workflow.workflow_text())["jobs"].values():
        for step in job["steps"]:
            done = subprocess.run([bash, "-n"], input=step["run"], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr


def test_the_build_script_goes_on_after_a_failure_and_tells_it(tmp_path: Any) -> None:
    """The step itself, with a `./run` that notes what it is asked and fails for one image."""
    step = next(
        step for step in workflow_of(workflow.workflow_text())["jobs"]["build"]["steps"] if "publish" in step["run"]
    )
    run = tmp_path / "run"
    run.write_text('#!/bin/sh\necho "$*" >>asked\ncase "$*" in "build --image bad "*) exit 6;; esac\n')
    run.chmod(0o755)
    for name in ("good", "last"):
        (tmp_path / "cache" / "manifests" / name).mkdir(parents=True)
        (tmp_path / "cache" / "manifests" / name / "last.md").write_text(f"# {name}\n")
    env = {
        "PATH": "/usr/bin:/bin", "IMAGES": "good bad last", "BASE": "replica", "REGISTRY": "registry.example.org/team",
        "DEEPINFER_BUILD_CACHE": str(tmp_path / "cache"), "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
    }  # fmt: skip
    done = subprocess.run(
        ["bash", "-c", step["run"]], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "::error::failed: bad\n" in done.stdout
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked[0] == "build --image good --base replica --wheels-from registry.example.org/team"
    assert [line for line in asked if line.startswith("publish")] == [
        f"publish --image {name} --registry registry.example.org/team{more}"
        for name in ("good", "last")
        for more in (" --wheels", "")
    ]
    assert [line for line in asked if line.startswith("clean")] == [
        f"clean --image {n} --yes" for n in ("good", "bad", "last")
    ]
    assert (tmp_path / "summary").read_text() == "# good\n# last\n"
