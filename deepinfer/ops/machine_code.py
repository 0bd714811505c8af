"""Whether compiled kernels leave registers of a product alone until it is finished, looked up in their machine code.

Hopper's wgmma works on beside the instructions that follow it. Before a wait for its group its sums are not complete,
and the registers that its first operand comes from are still read. PTX says so in the right order, but ptxas (12.8 and
12.9) moves instructions on those registers to the wrong side of the wait, where the operand comes from registers and a
product is still under way at the end of a loop: some sums lack a few columns then, now and then.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

_PRODUCT = "HGMMA"
_WAIT = "WARPGROUP.DEPBAR"
_LAST_OF_GROUP = "gsb0"
_READS_ONLY = re.compile(r"ST|LDGSTS|RED|BAR|BRA|EXIT|NOP|DEPBAR|WARP|LDGDEPBAR|FENCE|MEMBAR|R2UR|U|\w*SETP")
_FOUR = re.compile(r"\.128|88\.4")
_TWO = re.compile(r"\.64(?!x)|\.WIDE|88\.2|CS2R(?!\.32)|^D(ADD|MUL|FMA)")


@dataclass(frozen=True)
class _Instruction:
    """touched: registers that it names. written: those of them that it writes. to: labels that it may go to."""

    address: str
    always: bool
    opcode: str
    operands: str
    touched: frozenset[int]
    written: frozenset[int]
    to: tuple[str, ...] = ()

    @property
    def is_product(self) -> bool:
        return self.opcode.startswith(_PRODUCT)

    @property
    def sums(self) -> frozenset[int]:
        """Of a product: the registers of its sums, two for each four columns of its second operand."""
        columns = re.search(r"\.\d+x(\d+)x\d+", self.opcode)
        return _registers(self.operands.split(",")[0], int(columns[1]) // 2 if columns else 1)

    @property
    def operand(self) -> frozenset[int]:
        """Of a product: the registers of its first operand; none where that is in shared memory."""
        first = self.operands.split(",")[1].strip()
        return _registers(first, 4) if first.startswith("R") else frozenset()


def listing(cubin: bytes) -> str | None:
    """The machine code as nvdisasm shows it; None where Triton has no nvdisasm."""
    from triton import knobs

    try:
        tool = knobs.nvidia.nvdisasm.path
    except RuntimeError:
        return None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, "-c", file.name], capture_output=True, text=True, check=True).stdout


def unfinished_products(text: str) -> list[str]:
    """What nvdisasm shows to touch registers of a product that may not be finished: a line each.

    Every path is followed, with the products that no wait has been for yet.
    """
    code, labels = _parsed(text)
    found: dict[int, str] = {}
    seen = set()
    ahead: list[tuple[int, tuple[frozenset[int], ...], frozenset[int]]] = [(0, (), frozenset())]
    while ahead:
        state = at, groups, current = ahead.pop()
        if at >= len(code) or state in seen:
            continue
        seen.add(state)
        one = code[at]
        running = frozenset[int]().union(*groups, current)
        if one.opcode.startswith(_WAIT):
            left = int(one.operands.split(",")[1], 16)
            groups = groups[len(groups) - left :] if left < len(groups) else groups
        else:
            wrong = _conflict(one, [code[index] for index in sorted(running)])
            if wrong:
                found[at] = wrong
        if one.is_product:
            current |= {at}
            if _LAST_OF_GROUP in one.operands:
                groups, current = (*groups, current), frozenset()
        ahead += [(index, groups, current) for index in _next(at, one, labels)]
    return [found[at] for at in sorted(found)]


def _conflict(one: _Instruction, running: list[_Instruction]) -> str:
    for product in running:
        # Products with the same sums follow each other in order.
        own = one.is_product and one.sums == product.sums
        touched = one.operand if own else one.touched
        if touched & product.sums:
            return f"{one.opcode} at {one.address} touches the sums of the wgmma at {product.address} before a wait"
        if not own and one.written & product.operand:
            return f"{one.opcode} at {one.address} writes the operand of the wgmma at {product.address} before a wait"
    return ""


def _next(at: int, one: _Instruction, labels: dict[str, int]) -> Iterator[int]:
    yield from (labels[label] for label in one.to if label in labels)
    if not (one.always and one.opcode.startswith(("EXIT", "BRA"))):
        yield at + 1


def _parsed(text: str) -> tuple[list[_Instruction], dict[str, int]]:
    """The instructions, and where labels are."""
    code: list[_Instruction] = []
    labels: dict[str, int] = {}
    meeting: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        if label := re.match(r"(\.L_x_\d+):", line):
            labels[label[1]] = len(code)
        elif found := re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;", line):
            address, predicate, opcode, operands = found.groups()
            to = tuple(re.findall(r"\((\.L_x_\d+)\)", operands))
            barrier = operands.split(",")[0].strip()
            if opcode.startswith("BSSY"):  # the other threads go to its label from the BSYNC of the same barrier
                meeting[barrier], to = (*meeting.get(barrier, ()), *to), ()
            elif opcode.startswith("BSYNC"):
                to = meeting.get(barrier, ())
            always = predicate is None and re.match(r"!?U?P\d", operands) is None
            code.append(_Instruction(address, always, opcode, operands, *_named(opcode, operands), to))
    return code, labels


def _named(opcode: str, operands: str) -> tuple[frozenset[int], frozenset[int]]:
    """The registers that an instruction names, and those of them that it writes."""
    if opcode.startswith(_PRODUCT):
        product = _Instruction("", True, opcode, operands, frozenset(), frozenset())
        return product.sums | product.operand, product.sums
    width = 4 if _FOUR.search(opcode) else 2 if _TWO.search(opcode) else 1
    data = re.sub(r"\[[^\]]*\]", "", operands)
    touched = _registers(operands, 1) | _registers(data, 1 if opcode.startswith("LDGSTS") else width)
    targets = [one.strip() for one in data.split(",")]
    while targets and re.match(r"!?U?P[\dT]", targets[0]):
        targets.pop(0)
    if not targets or _READS_ONLY.match(opcode):
        return touched, frozenset()
    return touched, _registers(targets[0], width) if targets[0].startswith("R") else frozenset()


def _registers(text: str, width: int) -> frozenset[int]:
    """Those that a text names, each with the ones behind it: so many in all, or two of R8.64."""
    found: set[int] = set()
    for name in re.finditer(r"(?<!\w)R(\d+)\b(\.64)?", text):
        first = int(name[1])
        found.update(range(first, first + max(width, 2 if name[2] else 1)))
    return frozenset(found)
