"""Selection by names, globs and comma lists; whatever else a shell would make of a text, it is just text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from build.errors import NothingSelected
from build.matrix.select import select

NAMES = ["flagtree", "flagos", "cpu", "host"]


@pytest.mark.parametrize(
    ("pattern", "chosen"),
    [
        (None, NAMES),
        ("*", NAMES),
        ("cpu", ["cpu"]),
        ("flag*", ["flagtree", "flagos"]),
        ("host,cpu", ["cpu", "host"]),
        (" host , cpu ,", ["cpu", "host"]),
        ("cpu,cpu,*pu", ["cpu"]),
        ("[ch]*", ["cpu", "host"]),
        ("???", ["cpu"]),
    ],
)
def test_what_is_selected(pattern: str | None, chosen: list[str]) -> None:
    assert select(NAMES, pattern, "image") == chosen


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("flagtre", "there is no image 'flagtre'; did you mean 'flagtree'?"),
        ("CPU", "there is no image 'CPU'; did you mean 'cpu'?"),
        ("zzz", "there is no image 'zzz'"),
        ("x*", "no image matches 'x*'"),
        ("cpu,x*", "no image matches 'x*'"),
        ("cpu,flagtre,hots", "'hots'; did you mean 'host'?"),
        ("", "the selection '' names no image"),
        (",,", "the selection ',,' names no image"),
        ("$(touch y)", "there is no image '$(touch y)'"),
        ("cpu; touch y", "there is no image 'cpu; touch y'"),
        ("`id`", "there is no image '`id`'"),
        ("../cpu", "there is no image '../cpu'"),
        ("a\nb\x1b[31m", r"no image matches 'a\nb\x1b[31m'"),
        ("x" * 2000, "more than 1000 characters"),
    ],
)
def test_what_selects_nothing(pattern: str, said: str) -> None:
    with pytest.raises(NothingSelected) as caught:
        select(NAMES, pattern, "image")
    text = str(caught.value)
    assert caught.value.exit_code == 3
    assert said in text
    assert "flagtree, flagos, cpu, host" in text


def test_nothing_to_select_from() -> None:
    assert select([], None, "image") == []
    with pytest.raises(NothingSelected, match="matches"):
        select([], "*", "image")


@settings(max_examples=300)
@given(pattern=st.text(st.sampled_from("flagtreoscpuh*?[]!-,\\ $;`'\"\n\0é"), max_size=30) | st.text(max_size=30))
def test_a_selection_is_names_in_order_or_nothing(pattern: str) -> None:
    try:
        chosen = select(NAMES, pattern, "image")
    except NothingSelected as nothing:
        assert str(nothing).isprintable() or "\n  next step" in str(nothing)
        return
    assert chosen
    assert chosen == [name for name in NAMES if name in chosen]


def test_what_names_nothing_is_told_once_however_often_it_is_named() -> None:
    with pytest.raises(NothingSelected) as told:
        select(["flagtree"], "a,a, a,b", "image")
    assert told.value.what == "there is no image 'a'; there is no image 'b'"
