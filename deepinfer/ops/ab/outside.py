"""The other side as a program of its own: a module that has factories of the same names, such as upstream's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from deepinfer import envs
from deepinfer.activation import PACKAGE
from deepinfer.errors import DeepInferError
from deepinfer.ops.ab import portable
from deepinfer.ops.ab.portable.values import Value
from deepinfer.ops.ab.portable.write import constants, written
from deepinfer.ops.case import Call, Case

_PROGRAM = Path(str(portable.__file__)).with_name("__main__.py")
_UNUSABLE = 3


def write_inputs(calls: Iterable[tuple[Case, Call]], folder: Path, sources: Mapping[str, str]) -> None:
    """A dump of these calls' inputs."""
    with written(folder, {"backend": "inputs"}, sources) as writer:
        for case, call in calls:
            before = [Value(one.name, one.output, one.value) for one in call.arguments]
            writer.add(case.factory, case.name, *constants(call.parameters, call.named), before)


def run_module(module: str, path: Path, inputs: Path, outputs: Path, device: str, timeout: float) -> None:
    """Let `module`, found in the folder `path`, run the calls of the dump `inputs`; the dump `outputs` is what it did.

    Raises:
        DeepInferError: the module cannot be used, or its process crashed or hung; the case that it was in is named.
    """
    command = [sys.executable, "-P", str(_PROGRAM), module, str(inputs), str(outputs), device, str(PACKAGE)]
    environment = envs.for_child(PYTHONPATH=str(path.resolve()))
    said = outputs.with_name("said.txt")
    with said.open("wb") as file:
        child = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
        try:
            status = child.wait(timeout)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    if status == 0:
        return
    lines = said.read_text(errors="replace").strip().splitlines()
    last = lines[-1][:400] if lines else "it said nothing"
    if status == _UNUSABLE:
        raise DeepInferError(f"the other side cannot be used: {last}", next_step="look at --backend and --path")
    how = f"gave no answer within {timeout:g} s" if status is None else _ended(status)
    begun = next((line.removeprefix("case ") for line in reversed(lines) if line.startswith("case ")), "no case")
    raise DeepInferError(
        f"the process of {module} {how}, in {begun}",
        cause=f"it last said: {last}",
        next_step="leave that case out with --skip 'FACTORY/CASE=REASON', or raise --timeout",
    )


def _ended(status: int) -> str:
    return f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"
