"""The verb `matrix`."""

from __future__ import annotations

import json
import sys

from build.ci.jobs import as_github, as_json, make_jobs
from build.errors import NothingSelected
from build.matrix.generated import generate
from build.matrix.load import load_matrix
from build.matrix.select import select

FORMATS = ("table", "json", "github")
BASES = ("all", "vendor", "replica")


def check_generated() -> None:
    """Raise MatrixError where a file that is generated from the matrix does not follow from it any more."""
    from build.ci import workflow
    from build.matrix import page, schema

    generate(workflow.FILE, workflow.workflow_text(), "build.ci.workflow", check=True)
    generate(page.PAGE, page.page_text(), "build.matrix.page", check=True)
    generate(schema.SCHEMA, schema.schema_text(), "build.matrix.schema", check=True)


def run(image: str, *, form: str, base: str, hosted: bool, check: bool) -> int:
    """Print the jobs of the selected images; nothing but the matrix is read.

    Args:
        check: first hold the files that are generated from the matrix against what they should be.

    Raises:
        NothingSelected: no job is left.
        MatrixError: with `check`, a generated file is not what it should be; it names the command.
    """
    matrix = load_matrix()
    if check:
        check_generated()
    names = select(list(matrix.targets), image, "image")
    jobs = make_jobs(matrix, names, base=base, hosted_only=hosted)
    if not jobs:
        raise NothingSelected(
            f"no job is left of --image {image!r}, --base {base}" + (", --hosted" if hosted else ""),
            cause="the host is not built in continuous integration" if names == ["host"] else "",
            next_step="`./run matrix` shows all",
        )
    if form == "github":
        # One line: a job's output is a line of a file.
        print(json.dumps(as_github(jobs), separators=(",", ":")))
    elif form == "json":
        print(json.dumps(as_json(jobs), indent=2))
    else:
        width = max(len(job.name) for job in jobs)
        for job in jobs:
            print(f"{job.name:<{width}}  {job.disk_gb:>4} GB  {job.timeout_minutes:>4} min  {' '.join(job.runs_on)}")
        print(f"{len(jobs)} jobs", file=sys.stderr)
    return 0
