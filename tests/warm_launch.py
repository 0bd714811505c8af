"""Launch the probe's kernels through a driver that launches nothing, in the environment as it is, and print a line of
JSON: the launches, and what of the kernels and C modules was found and what was compiled. Run by tests of warm caches,
in images too.
"""

import json
import tempfile
from pathlib import Path

import triton

import deepinfer  # noqa: F401  # whose activation is what is tested
from deepinfer.probe.checks import CHECKS
from deepinfer.warm import cache, stand_in

record = cache.count()
with tempfile.TemporaryDirectory() as folder:
    stand_in.provide_cuda(Path(folder))
    driver = stand_in.HopperDriver().with_modules()
    triton.runtime.driver.set_active(driver)
    for case in (case for check in CHECKS for case in check.cases):
        case.kernel[case.grid](**case.example().arguments, **case.constants)
counts = {"kernels": record.kernels.to_json(), "modules": record.modules.to_json()}
print(json.dumps({"launches": driver.launches, **counts}))
