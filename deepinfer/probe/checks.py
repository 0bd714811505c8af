"""What the probe checks: each case is a kernel with its signature and what it is given and has to give."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from deepinfer.probe import answers, kernels
from deepinfer.probe.answers import Example


@dataclass(frozen=True)
class Case:
    """One kernel, ready to be compiled, launched and judged.

    signature: Triton's type of each run-time argument, in order. constants: the compile-time ones.
    interpreter_fault: empty, or what Triton's interpreter gets wrong of this example (found in 3.5.1, 3.6.0, 3.7.1).
    interpreted: a milder example that the interpreter must get right in spite of its fault.
    """

    kernel: Any
    signature: Mapping[str, str]
    constants: Mapping[str, int]
    example: Callable[[], Example]
    grid: tuple[int] = (1,)
    interpreter_fault: str = ""
    interpreted: Callable[[], Example] | None = None
    label: str = ""

    @property
    def name(self) -> str:
        """`rope[DISTANCE=1]`: the kernel, and what tells this case from others of the same kernel."""
        return f"{self.kernel.__name__}[{self.label}]" if self.label else str(self.kernel.__name__)


@dataclass(frozen=True)
class Check:
    """A row of the report. The check `ptx target` has no case of its own: it reads the PTX of all others."""

    name: str
    cases: tuple[Case, ...] = field(default=())


def _dot_case(dtype: str, short: str, interpreter_fault: str = "") -> Case:
    return Case(
        kernels.dot,
        {"a_ptr": f"*{short}", "b_ptr": f"*{short}", "out_ptr": "*fp32"},
        {"M": 64, "N": 64, "K": 128},
        lambda: answers.dot_example(dtype),
        interpreter_fault=interpreter_fault,
        label=short,
    )


def _rope_case(distance: int) -> Case:
    return Case(
        kernels.rope,
        {"x_ptr": "*fp32", "cos_ptr": "*fp32", "sin_ptr": "*fp32", "out_ptr": "*fp32"},
        {"TOKENS": 8, "DIM": 64, "DISTANCE": distance},
        lambda: answers.rope_example(distance),
        label=f"DISTANCE={distance}",
    )


PTX_TARGET = "ptx target"
_FP8_FAULT = "its e4m3 cast sends ties away from zero and loses the carry of values that round up to a power of two"

CHECKS: tuple[Check, ...] = (
    Check(
        "element-wise add",
        (
            Case(
                kernels.add,
                {"a_ptr": "*fp32", "b_ptr": "*fp32", "out_ptr": "*fp32", "count": "i32"},
                {"BLOCK": 256},
                answers.add_example,
                grid=(4,),
            ),
        ),
    ),
    Check(
        "dot",
        (
            _dot_case("float16", "fp16"),
            _dot_case("bfloat16", "bf16", "it multiplies the bits of bf16 operands as integers"),
        ),
    ),
    Check(
        "gather rows",
        (
            Case(
                kernels.gather_rows,
                {"source_ptr": "*bf16", "picked_ptr": "*i32", "out_ptr": "*bf16"},
                {"ROWS": 32, "PICKED": 16, "COLUMNS": 64},
                answers.gather_rows_example,
            ),
        ),
    ),
    Check("gather rope pairs", (_rope_case(1), _rope_case(32))),
    Check(
        "fp8e4nv block cast",
        (
            Case(
                kernels.cast_fp8,
                {"x_ptr": "*bf16", "codes_ptr": "*u8", "exponents_ptr": "*u8", "back_ptr": "*fp32"},
                {"BLOCKS": 16, "GROUP": 128},
                answers.cast_fp8_example,
                interpreter_fault=_FP8_FAULT,
                interpreted=answers.cast_fp8_unrounded_example,
            ),
            Case(
                kernels.cast_fp8_plain,
                {"x_ptr": "*fp32", "codes_ptr": "*u8"},
                {"COUNT": 1024},
                answers.cast_fp8_plain_example,
                interpreter_fault=_FP8_FAULT,
                interpreted=answers.cast_fp8_plain_finite_example,
            ),
        ),
    ),
    Check(
        "int64 cdf of u32",
        (
            Case(
                kernels.pick_by_cdf,
                {"mass_ptr": "*i32", "draws_ptr": "*i64", "picked_ptr": "*i32", "total_ptr": "*i64"},
                {"LANES": 256, "DRAWS": 64},
                answers.cdf_example,
            ),
        ),
    ),
    Check(PTX_TARGET),
)
"""The seven checks, in the report's order."""
