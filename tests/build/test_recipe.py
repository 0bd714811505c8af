"""The compile as data: what it says, and what changes its digest."""

import dataclasses
import os
from collections.abc import Mapping

import pytest

from build.errors import MatrixError
from build.matrix.model import Component, Source
from build.wheels.recipe import Places, make_recipe, recipe_digest

PLACES = Places(
    python="/usr/bin/python3",
    source="/build/src",
    out="/build/out",
    work="/build/work",
    result="/build/result",
    path=("/usr/lib/ccache", "/usr/bin"),
    pythonpath=("/opt/builder/site",),
    cuda_home="/usr/local/cuda",
    libstdcxx="/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
    ccache="/build/ccache",
)


def component(
    kind: str = "wheel", environment: Mapping[str, str] | None = None, shims: tuple[str, ...] = ()
) -> Component:
    assert kind in ("wheel", "extension", "overlay")
    return Component("thing", "Thing", kind, "1.0", Source(path="."), environment=environment or {}, shims=shims)  # type: ignore[arg-type]


def test_a_wheel_is_compiled_for_hopper_with_the_shared_libstdcxx() -> None:
    recipe = make_recipe(component(), PLACES, jobs=2)
    assert recipe.argv == ("/usr/bin/python3", "setup.py", "bdist_wheel", "--dist-dir", "/build/out")
    assert (recipe.cwd, recipe.product) == ("/build/src", "*.whl")
    assert recipe.env["MAX_JOBS"] == "2"
    assert recipe.env["TORCH_CUDA_ARCH_LIST"] == "9.0"
    assert recipe.env["CUDA_HOME"] == "/usr/local/cuda"
    assert recipe.env["PATH"] == "/usr/lib/ccache:/usr/bin"
    assert "/usr/lib/x86_64-linux-gnu/libstdc++.so.6" in recipe.env["LDFLAGS"].split()
    assert recipe.env["CCACHE_NOHASHDIR"] == "1"


def test_an_extension_leaves_a_shared_object() -> None:
    recipe = make_recipe(component("extension"), PLACES, jobs=1)
    assert recipe.argv[:3] == ("/usr/bin/python3", "setup.py", "build_ext")
    assert recipe.product == "**/*.so"


def test_an_overlay_is_not_compiled() -> None:
    with pytest.raises(MatrixError, match="overlay"):
        make_recipe(component("overlay"), PLACES, jobs=1)


def test_a_cpu_build_names_no_cuda_and_no_cache_where_there_is_none() -> None:
    recipe = make_recipe(component(), dataclasses.replace(PLACES, cuda_home=None, ccache=None, libstdcxx=None), jobs=1)
    assert not {"CUDA_HOME", "CCACHE_DIR", "LDFLAGS", "CPATH"} & set(recipe.env)


def test_the_matrix_has_the_last_word_on_the_environment() -> None:
    recipe = make_recipe(component(environment={"DG_FORCE_BUILD": "1", "LDFLAGS": "-s"}), PLACES, jobs=1)
    assert (recipe.env["DG_FORCE_BUILD"], recipe.env["LDFLAGS"]) == ("1", "-s")


def test_shims_are_included_before_all_other_headers() -> None:
    places = dataclasses.replace(PLACES, shims=("/build/shims/0-batch.h", "/build/shims/1-more.h"))
    recipe = make_recipe(component(shims=("images/shims/batch.h", "images/shims/more.h")), places, jobs=1)
    assert recipe.env["CXXFLAGS"].split()[1:] == [
        "-include",
        "/build/shims/0-batch.h",
        "-include",
        "/build/shims/1-more.h",
    ]


def test_the_digest_knows_kind_and_environment_and_nothing_of_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    digest = recipe_digest(component())
    monkeypatch.setenv("PATH", "/elsewhere:" + os.environ["PATH"])
    monkeypatch.setenv("CFLAGS", "-O0")
    assert recipe_digest(component()) == digest
    others = [
        component("extension"),
        component("overlay"),
        component(environment={"EP_NUM_TOPK_IDX_BITS": "32"}),
    ]
    assert len({digest, *map(recipe_digest, others)}) == 4
    assert recipe_digest(component(shims=("images/shims/batch.h",))) == digest, "not every base takes them"
