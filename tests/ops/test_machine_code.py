"""Registers of products that are not finished, found in what nvdisasm shows of a kernel."""

from __future__ import annotations

import pytest

from deepinfer.ops.machine_code import unfinished_products

LOOP = """
        /*0000*/                   S2R R0, SR_CTAID.X ;
.L_x_0:
        /*0010*/                   {load}
        /*0020*/                   WARPGROUP.ARRIVE ;
        /*0030*/                   HGMMA.64x16x16.F32.BF16 R24, R56, gdesc[UR4], R24 ;
        /*0040*/                   HGMMA.64x16x16.F32.BF16 R24, R60, gdesc[UR8], R24, gsb0 ;
        /*0050*/                   WARPGROUP.DEPBAR.LE gsb0, {left} ;
        /*0060*/                   {behind}
        /*0070*/               @P0 BRA `(.L_x_0) ;
        /*0080*/                   {after}
        /*0090*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*00a0*/                   STG.E.128 desc[UR4][R2.64], R24 ;
        /*00b0*/                   EXIT ;
"""
NOP = "NOP ;"


def _found(*, load: str = "LDS.U16 R8, [R9] ;", left: str = "0x1", behind: str = NOP, after: str = NOP) -> list[str]:
    return unfinished_products(LOOP.format(load=load, left=left, behind=behind, after=after))


def test_sums_are_read_behind_a_wait() -> None:
    assert _found() == []
    assert _found(left="0x0", behind="FMUL R24, R24, R3 ;", after="F2FP.BF16.F32.PACK_AB R7, R25, R24 ;") == []


@pytest.mark.parametrize(
    "text",
    [
        "F2FP.BF16.F32.PACK_AB R7, R25, R24 ;",
        "F2FP.BF16.F32.PACK_AB R7, R1, R31 ;",
        "STG.E.128 desc[UR4][R2.64], R28 ;",
        "STS.64 [R2], R30 ;",
        "IMAD.MOV.U32 R24, RZ, RZ, RZ ;",
        "LDS.128 R20, [R40] ;",
        "HGMMA.64x16x16.F32.BF16 R64, R28, gdesc[UR4], R64, gsb0 ;",
    ],
)
def test_sums_are_touched_before_a_wait(text: str) -> None:
    safe = text.startswith("LDS.128")  # R20 to R23
    assert bool(_found(after=text)) is not safe
    assert bool(_found(behind=text)) is not safe


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("LDS.U16 R56, [R9] ;", True),
        ("LDSM.16.M88.4 R52, [R9] ;", False),
        ("LDSM.16.M88.4 R53, [R9] ;", True),
        ("IMAD.WIDE R62, R3, R4, R6 ;", True),
        ("ISETP.GE.AND P0, PT, R56, R57, PT ;", False),
        ("SEL R7, R56, R60, P0 ;", False),
        ("STS.128 [R2], R56 ;", False),
    ],
)
def test_an_operand_is_written_in_the_next_step(text: str, wrong: bool) -> None:
    assert bool(_found(load=text)) is wrong
    assert _found(load=text, left="0x0") == []


def test_what_is_told_names_both_instructions() -> None:
    (line,) = _found(after="MOV R5, R27 ;")
    assert line == "MOV at 0080 touches the sums of the wgmma at 0030 before a wait"


def test_a_path_around_the_wait_is_followed() -> None:
    around = LOOP.replace("/*0080*/                   {after}", "/*0080*/               @P1 BRA `(.L_x_1) ;").replace(
        "/*00a0*/", "/*0095*/                   NOP ;\n.L_x_1:\n        /*00a0*/"
    )
    text = around.format(load=NOP, left="0x1", behind=NOP)
    assert unfinished_products(text) == ["STG.E.128 at 00a0 touches the sums of the wgmma at 0030 before a wait"]
    met = text.replace("@P1 BRA `(.L_x_1)", "BSYNC B0").replace("S2R R0, SR_CTAID.X", "BSSY B0, `(.L_x_1)")
    assert unfinished_products(met) == ["STG.E.128 at 00a0 touches the sums of the wgmma at 0030 before a wait"]
    assert unfinished_products("") == []
