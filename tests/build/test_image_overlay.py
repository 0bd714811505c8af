"""What is laid over a base: dependencies only where absent, the tool chain, NCCL in place, licences of everything."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from build.cache import REPOSITORY
from build.errors import EnvironmentCannot, MatrixError
from build.image.licences import lay_licences
from build.image.nccl import lay_nccl, nccl_site
from build.image.overlay import (
    lay_components,
    lay_engine,
    lay_runtime,
    lock_versions,
    read_minimums,
    sort_runtime,
    top_modules,
)
from build.image.package import pack_engine
from build.image.toolchain import choose_toolchain, lay_toolchain
from build.locks import read_lock
from build.plan import Cell, CellStatus, TargetPlan
from tests.image_stand_ins import NCCL, SITE, base_facts, component, make_extension, make_wheel, plan_of

PREFIX = PurePosixPath("/opt/deepinfer/cuda")


def files(tree: Path) -> list[str]:
    return sorted(f"/{path.relative_to(tree)}" for path in tree.rglob("*") if not path.is_dir())


# Run-time dependencies.


@pytest.fixture
def minimums(tmp_path: Path) -> Path:
    path = tmp_path / "runtime.in"
    path.write_text("# needs\nnumpy>=1.26\npackaging>=23 # versions\nTokenizers>=0.20\n")
    return path


def test_dependencies_are_added_where_absent_and_never_upgraded(minimums: Path) -> None:
    wanted = {"numpy": "2.4.6", "packaging": "26.4", "tokenizers": "0.23.3"}
    decided = sort_runtime(wanted, read_minimums(minimums), {"numpy": "1.26.4", "packaging": "21.0"})
    assert {name: (fact["status"], fact["version"]) for name, fact in decided.items()} == {
        "numpy": ("base", "1.26.4"),
        "packaging": ("too old", "21.0"),
        "tokenizers": ("added", "0.23.3"),
    }
    assert "packaging>=23" in decided["packaging"]["reason"]


def test_a_version_that_is_none_counts_as_too_old(minimums: Path) -> None:
    decided = sort_runtime({"numpy": "2"}, read_minimums(minimums), {"numpy": "vendor build"})
    assert decided["numpy"]["status"] == "too old"


def test_a_malformed_requirement_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "runtime.in"
    path.write_text("numpy>=1\n\nnumpy >> 2\n")
    with pytest.raises(MatrixError, match=r"runtime\.in:3:"):
        read_minimums(path)


def test_only_what_is_to_be_added_is_laid_without_its_commands(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    entry = b"[console_scripts]\nf2py = numpy:main\n"
    make_wheel(wheels, "numpy", "2.0", {"numpy/__init__.py": b"", "numpy-2.0.dist-info/entry_points.txt": entry})
    make_wheel(wheels, "packaging", "26.4", {"packaging/__init__.py": b""})
    decided = sort_runtime(lock_versions(wheels), {}, {"packaging": "21.0"})
    contents = lay_runtime(tmp_path / "tree", wheels, decided, base_facts())
    laid = files(tmp_path / "tree")
    assert f"{SITE}/numpy/__init__.py" in laid
    assert "/opt/deepinfer/licenses/numpy/LICENSE" in laid
    assert not [name for name in laid if "packaging" in name or "/bin/" in name]
    assert contents.modules == (f"{SITE}/numpy",)


@pytest.mark.parametrize("image", ["flagtree", "cpu", "host"])
def test_the_locks_pin_what_the_engine_names_and_nothing_of_torchs_family(image: str) -> None:
    lock = read_lock(REPOSITORY / f"images/{image}/runtime.lock")
    wanted = read_minimums(REPOSITORY / f"images/{image}/runtime.in")
    assert {pin.name for pin in lock.pins} == set(wanted)
    assert all(wanted[pin.name].specifier.contains(pin.version) for pin in lock.pins)
    assert not [pin.name for pin in lock.pins if pin.name in ("torch", "triton") or pin.name.startswith("nvidia")]


def test_numpy_is_pinned_for_three_pythons() -> None:
    pin = read_lock(REPOSITORY / "images/flagtree/runtime.lock").pin("numpy")
    assert pin is not None
    assert len(pin.hashes) == 3


# Components and the engine.


def test_components_go_into_a_site_of_their_own(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "deepinfer_gemm", "2.8.2", {"deep_gemm/__init__.py": b""})
    contents = lay_components(tmp_path / "tree", {"deep_gemm": wheel}, base_facts())
    laid = files(tmp_path / "tree")
    assert "/opt/deepinfer/site/deep_gemm/__init__.py" in laid
    assert all(name.startswith("/opt/deepinfer/") for name in laid)
    assert contents.modules == ("/opt/deepinfer/site",)


def test_the_engine_is_packed_around_its_compiled_part_and_gets_its_command(tmp_path: Path) -> None:
    facts = base_facts()
    wheel = pack_engine(REPOSITORY, make_extension(tmp_path, facts), facts, tmp_path / "out", target="some")
    assert wheel.name.endswith("-cp313-cp313-linux_x86_64.whl")
    contents = lay_engine(tmp_path / "tree", wheel, b"{}\n", facts)
    laid = files(tmp_path / "tree")
    assert f"{SITE}/deepinfer/_C.cpython-313-x86_64-linux-gnu.so" in laid
    command = (tmp_path / "tree/usr/local/bin/deepinfer").read_text()
    assert command.startswith("#!/usr/bin/python3\n")
    assert (tmp_path / "tree/opt/deepinfer/image.json").read_text() == "{}\n"
    assert (tmp_path / "tree/opt/deepinfer/licenses/deepinfer/LICENSE").read_text() == Path("LICENSE").read_text()
    assert contents.modules == (f"{SITE}/deepinfer",)
    assert not [name for name in laid if name.endswith(".pyc") or "/build/" in name]


def test_the_wheel_is_the_same_for_the_same_sources(tmp_path: Path) -> None:
    extension = make_extension(tmp_path, base_facts())
    made = [pack_engine(REPOSITORY, extension, base_facts(), tmp_path / name, target=name) for name in ("a", "b")]
    assert made[0].read_bytes() == made[1].read_bytes()


def test_without_its_compiled_part_the_engine_is_packed_for_any_python(tmp_path: Path) -> None:
    wheel = pack_engine(REPOSITORY, None, base_facts(), tmp_path, target="some")
    assert wheel.name.endswith("-py3-none-any.whl")


def test_what_is_no_compiled_part_is_refused_in_plain_words(tmp_path: Path) -> None:
    (tmp_path / "_C.so").write_bytes(b"\x7fELF of something else")
    with pytest.raises(Exception, match="could not be packed") as told:
        pack_engine(REPOSITORY, tmp_path / "_C.so", base_facts(), tmp_path / "out", target="some")
    assert "package-some.log" in str(told.value)
    assert not list((tmp_path / "out").glob("*.whl"))


def test_top_modules_are_packages_and_single_files(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "many", "1", {"pkg/a.py": b"", "single.py": b"", "many-1.data/scripts/x": b""})
    assert top_modules(wheel) == ["pkg", "single.py"]


# Licences.


def test_a_wheel_without_a_licence_text_is_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "nolicence", "1", {"nolicence.py": b""}, licence=None)
    with pytest.raises(MatrixError, match="no licence text") as told:
        lay_licences(tmp_path / "tree", "nolicence", wheel)
    assert "images/licences/nolicence/" in told.value.next_step


def test_the_repository_has_the_texts_that_wheels_lack(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "tokenizers", "0.23.3", {"tokenizers.py": b""}, licence=None)
    assert lay_licences(tmp_path / "tree", "tokenizers", wheel) == ["LICENSE"]
    text = (tmp_path / "tree/opt/deepinfer/licenses/tokenizers/LICENSE").read_text()
    assert "Apache License" in text


# The tool chain.


COMPILER = {
    "nvidia/cu13/bin/nvcc": b"driver",
    "nvidia/cu13/bin/ptxas": b"assembler",
    "nvidia/cu13/bin/nvcc.profile": b"TOP = x",
    "nvidia/cu13/nvvm/bin/cicc": b"compiler",
    "nvidia/cu13/lib/libnvvm.so.4": b"not needed",
    "nvidia/cu13/lib/libcudart.so.13": b"runtime",
    "nvidia/cu13/include/cuda_runtime.h": b"",
    "nvidia/cu13/include/cccl/cuda/barrier": b"",
    "other/file": b"",
}
PROGRAMS = ("nvidia/cu13/bin/nvcc", "nvidia/cu13/bin/ptxas", "nvidia/cu13/nvvm/bin/cicc")


def test_the_tool_chain_becomes_a_cuda_home(tmp_path: Path) -> None:
    make_wheel(tmp_path / "wheels", "nvidia_cuda_nvcc", "13.0.88", COMPILER, executable=PROGRAMS)
    own = f"{SITE}/nvidia/cu13/lib/libcudart.so.13"
    lay_toolchain(tmp_path / "tree", tmp_path / "wheels", PREFIX, own)
    home = tmp_path / "tree/opt/deepinfer/cuda"
    assert (home / "bin/nvcc").stat().st_mode & 0o111
    assert not (home / "bin/nvcc.profile").stat().st_mode & 0o111
    assert (home / "lib64").readlink() == Path("lib")
    assert (home / "lib/libcudart.so").readlink() == Path("libcudart.so.13")
    assert (home / "lib/libcudart.so.13").readlink() == Path(own)
    assert not (home / "lib/libnvvm.so.4").exists()
    assert not (tmp_path / "tree/opt/deepinfer/cuda/file").exists()
    assert "/opt/deepinfer/licenses/nvidia-cuda-nvcc/LICENSE" in files(tmp_path / "tree")


def test_a_base_without_that_runtime_gets_the_tool_chains_own(tmp_path: Path) -> None:
    make_wheel(tmp_path / "wheels", "nvidia_cuda_nvcc", "13.0.88", COMPILER, executable=PROGRAMS)
    lay_toolchain(tmp_path / "tree", tmp_path / "wheels", PREFIX, None)
    assert (tmp_path / "tree/opt/deepinfer/cuda/lib/libcudart.so.13").read_bytes() == b"runtime"


def test_an_incomplete_tool_chain_is_told_by_what_is_missing(tmp_path: Path) -> None:
    part = {name: data for name, data in COMPILER.items() if "cccl" not in name and "cicc" not in name}
    make_wheel(tmp_path / "wheels", "nvidia_cuda_nvcc", "13.0.88", part)
    with pytest.raises(EnvironmentCannot, match=r"nvvm/bin/cicc, include/cccl"):
        lay_toolchain(tmp_path / "tree", tmp_path / "wheels", PREFIX, None)


def test_a_wheel_that_climbs_out_of_its_folder_is_refused(tmp_path: Path) -> None:
    make_wheel(tmp_path / "wheels", "evil", "1", {"nvidia/cu13/../../../../../../evil": b"x"})
    with pytest.raises(EnvironmentCannot, match="outside of its folder"):
        lay_toolchain(tmp_path / "tree", tmp_path / "wheels", PREFIX, None)


def jit_plan(status: CellStatus = "build") -> TargetPlan:
    return plan_of({"deep_gemm": (component("deep_gemm", toolchain=True), status)})


@pytest.mark.parametrize(
    ("nvcc", "status", "chosen"),
    [
        (None, "build", "added"),
        ("12.8.93", "build", "added"),
        ("12.9.86", "build", "base"),
        ("13.0.88", "cached", "base"),
        ("unreadable", "build", "added"),
        (None, "unsupported", "none"),
    ],
)
def test_a_tool_chain_is_added_where_needed_and_lacking(nvcc: str | None, status: CellStatus, chosen: str) -> None:
    choice = choose_toolchain(jit_plan(status), base_facts(nvcc=nvcc), "13.0.88")
    assert choice.status == chosen
    assert choice.reason


def test_a_base_without_a_host_compiler_is_told() -> None:
    choice = choose_toolchain(jit_plan(), base_facts(gcc=None), "13.0.88")
    assert "no host compiler" in choice.reason


def test_variables_are_set_only_where_the_base_would_lead_the_jit_astray() -> None:
    names = {"DG_JIT_NVCC_COMPILER", "EP_JIT_NVCC_COMPILER"}
    clean, old = base_facts(), base_facts(nvcc="12.0.1")
    own_home = base_facts(environment={"CUDA_HOME": "/usr/local/cuda", "DG_JIT_NVCC_COMPILER": "/vendor/nvcc"})
    assert choose_toolchain(jit_plan(), clean, "13.0.88").environment(clean) == {}
    older = base_facts(cuda="12.8")
    assert set(choose_toolchain(jit_plan(), older, "13.0.88").environment(older)) == names
    assert set(choose_toolchain(jit_plan(), old, None).environment(old)) == names
    variables = choose_toolchain(jit_plan(), own_home, None).environment(own_home)
    assert variables == {"EP_JIT_NVCC_COMPILER": "/opt/deepinfer/cuda/bin/nvcc"}


# NCCL.


@pytest.fixture
def nccl_wheel(tmp_path: Path) -> Path:
    contents = {"nvidia/nccl/lib/libnccl.so.2": b"new", "nvidia/nccl/include/nccl.h": b"2.32"}
    return make_wheel(tmp_path, "nvidia_nccl_cu13", "2.32.3", contents)


def nccl_cell() -> Cell:
    return Cell("stand-in", component("nccl", "overlay", version="2.32.3"), "build")


def test_nccl_takes_the_place_of_the_file_that_torch_loads(tmp_path: Path, nccl_wheel: Path) -> None:
    contents = lay_nccl(tmp_path / "tree", nccl_wheel, nccl_cell(), base_facts())
    laid = files(tmp_path / "tree")
    assert (tmp_path / f"tree{NCCL}").read_bytes() == b"new"
    assert f"{SITE}/nvidia_nccl_cu13-2.32.3.dist-info/RECORD" in laid
    assert "/opt/deepinfer/licenses/nccl/LICENSE" in laid
    assert f"{SITE}/nvidia_nccl_cu13-*.dist-info" in contents.removes
    assert contents.facts == {"version": "2.32.3", "replaced": "2.28.9", "path": NCCL}


def test_a_system_nccl_is_replaced_where_it_lies_and_the_wheel_links_to_it(tmp_path: Path, nccl_wheel: Path) -> None:
    system = "/usr/lib/x86_64-linux-gnu/libnccl.so.2.28.9"
    lay_nccl(tmp_path / "tree", nccl_wheel, nccl_cell(), base_facts(nccl_loaded=system))
    assert (tmp_path / f"tree{system}").read_bytes() == b"new"
    assert (tmp_path / f"tree{NCCL}").readlink() == Path(system)
    assert (tmp_path / f"tree{SITE}/nvidia/nccl/include/nccl.h").exists()


def test_a_base_whose_torch_loads_no_nccl_is_refused(tmp_path: Path, nccl_wheel: Path) -> None:
    with pytest.raises(EnvironmentCannot, match="loads no libnccl"):
        lay_nccl(tmp_path / "tree", nccl_wheel, nccl_cell(), base_facts(nccl_loaded=None))


def test_a_wheel_without_the_library_is_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "nvidia_nccl_cu13", "2.32.3", {"nvidia/nccl/include/nccl.h": b""})
    with pytest.raises(EnvironmentCannot, match=r"holds no nvidia/nccl/lib/libnccl\.so\.2"):
        lay_nccl(tmp_path / "tree", wheel, nccl_cell(), base_facts())


def test_the_site_of_an_nccl_wheel_is_found_from_the_loaded_file() -> None:
    assert nccl_site(NCCL) == PurePosixPath(SITE)
    assert nccl_site("/usr/lib/libnccl.so.2") is None
