""".github/workflows/images.yml: `python -m build.ci.workflow [--check]`.

It takes no action from elsewhere: what a step does stands in it, so that nothing has to be trusted by a name that
others can move. What a job builds comes from `./run matrix` when the workflow runs; values reach a shell as variables,
never as text of the script.
"""

from __future__ import annotations

import sys

from build.cache import REPOSITORY
from build.ci.jobs import HOSTED, bases_of, make_jobs
from build.matrix.generated import run_generator
from build.matrix.load import load_matrix
from build.matrix.model import Matrix

FILE = REPOSITORY / ".github" / "workflows" / "images.yml"

_HEAD = """\
# Generated from matrix.yaml by `./run -- python -m build.ci.workflow`; do not edit.
#
# Variables and secrets of the repository that it takes:
#   vars.DEEPINFER_REGISTRY              HOST[:PORT]/PATH; without it images are built and checked, and not published
#   secrets.DEEPINFER_REGISTRY_USER, secrets.DEEPINFER_REGISTRY_PASSWORD
# Runners of one's own carry the labels self-hosted, linux, x64 and disk-32gb, disk-64gb and so on. A pull request gets
# hosted runners only: whoever opens one would run programs on yours.
name: images

on:
  push:
    branches: [main]
  pull_request:
  schedule:
    - cron: "17 3 * * 1"
  workflow_dispatch:
    inputs:
      image:
        description: images by name, globs and comma lists
        default: "*"
      base:
        description: kind of base
        type: choice
        options: [all, vendor, replica]
        default: all

permissions:
  contents: read

concurrency:
  group: images-${{ github.ref }}
  cancel-in-progress: ${{ github.event_name == 'pull_request' }}

defaults:
  run:
    shell: bash

env:
  CI: "true"

"""

_CHECKOUT = """\
      - name: Sources
        env:
          TOKEN: ${{ github.token }}
          URL: ${{ github.server_url }}/${{ github.repository }}
          COMMIT: ${{ github.sha }}
        run: |
          set -euo pipefail
          # A runner of one's own may hold the sources of the run before.
          find . -mindepth 1 -maxdepth 1 -exec rm -rf {} +
          git init --quiet .
          export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=http.extraheader
          GIT_CONFIG_VALUE_0="AUTHORIZATION: basic $(printf 'x-access-token:%s' "$TOKEN" | base64 --wrap=0)"
          export GIT_CONFIG_VALUE_0
          git fetch --quiet --depth=1 "$URL" "$COMMIT"
          git checkout --quiet FETCH_HEAD
"""

_PLAN = """\
jobs:
  plan:
    name: jobs
    runs-on: {runner}
    timeout-minutes: 15
    outputs:
      matrix: ${{{{ steps.matrix.outputs.matrix }}}}
    steps:
{checkout}
      - name: Jobs
        id: matrix
        env:
          IMAGE: ${{{{ inputs.image || '*' }}}}
          BASE: ${{{{ inputs.base || 'all' }}}}
          EVENT: ${{{{ github.event_name }}}}
        run: |
          set -euo pipefail
          options=(--check --image "$IMAGE" --base "$BASE")
          if [ "$EVENT" = pull_request ]; then options+=(--hosted); fi
          jobs=$(./run matrix --format github "${{options[@]}}")
          printf 'matrix=%s\\n' "$jobs" >>"$GITHUB_OUTPUT"

"""

_BUILD = """\
  build:
    # In all: {total}.
    name: ${{{{ matrix.name }}}}
    needs: plan
    runs-on: ${{{{ matrix.runs_on }}}}
    timeout-minutes: ${{{{ matrix.timeout_minutes }}}}
    strategy:
      fail-fast: false
      matrix: ${{{{ fromJSON(needs.plan.outputs.matrix) }}}}
    env:
      IMAGES: ${{{{ matrix.images }}}}
      BASE: ${{{{ matrix.base }}}}
      # A pull request's secrets are empty; what it built is nobody's release.
      REGISTRY: ${{{{ github.event_name != 'pull_request' && vars.DEEPINFER_REGISTRY || '' }}}}
    steps:
{checkout}
      - name: Build, verify, publish
        env:
          DEEPINFER_REGISTRY_USER: ${{{{ secrets.DEEPINFER_REGISTRY_USER }}}}
          DEEPINFER_REGISTRY_PASSWORD: ${{{{ secrets.DEEPINFER_REGISTRY_PASSWORD }}}}
        run: |
          set -euo pipefail
          from=()
          if [ -n "$REGISTRY" ]; then from=(--wheels-from "$REGISTRY"); fi
          cache=${{DEEPINFER_BUILD_CACHE:-$HOME/.cache/deepinfer-build}}
          # One at a time, so that the disk holds one; a failure is told in the end, after the others were built.
          failed=()
          one() {{
            ./run build --image "$1" --base "$BASE" "${{from[@]}}" || return
            ./run verify "$1" || return
            cat "$cache/manifests/$1/last.md" >>"$GITHUB_STEP_SUMMARY" || return
            if [ -n "$REGISTRY" ]; then
              ./run publish --image "$1" --registry "$REGISTRY" --wheels || return
              ./run publish --image "$1" --registry "$REGISTRY" || return
            fi
          }}
          for image in $IMAGES; do
            one "$image" || failed+=("$image")
            # Another job on this machine may be building it: then it stays.
            ./run clean --image "$image" --yes || true
          done
          if [ ${{#failed[@]}} -gt 0 ]; then
            echo "::error::failed: ${{failed[*]}}"
            exit 1
          fi
"""


def make_workflow(matrix: Matrix) -> str:
    """The file's text."""
    names = [name for name, target in matrix.targets.items() if bases_of(target)]
    jobs = make_jobs(matrix, names)
    total = "; ".join(f"{job.name} on {' '.join(job.runs_on)}" for job in jobs)
    return (
        _HEAD
        + _PLAN.format(runner=HOSTED[0], checkout=_CHECKOUT)
        + _BUILD.format(total=_wrapped(total), checkout=_CHECKOUT)
    )


def _wrapped(text: str) -> str:
    """As lines of a comment."""
    return text.replace("; ", ";\n    #   ")


def workflow_text() -> str:
    """The text for the repository's own matrix."""
    return make_workflow(load_matrix())


if __name__ == "__main__":
    sys.exit(run_generator(FILE, workflow_text, "build.ci.workflow", sys.argv[1:]))
