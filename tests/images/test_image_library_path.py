"""The missing libcudart.so.12 on a CUDA 13 base: the fault as it is seen, and its cure for any user and search path."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from build import cache
from build.bases.inspect import inspect_base
from build.bases.resolve import resolve_base
from build.containers import LABEL, Engine
from build.image.assemble import Built, assemble
from build.image.library_path import examine
from build.inspection import Inspection, Library
from build.matrix.load import load_matrix
from build.plan import make_plan
from build.sources import collect_sources

pytestmark = pytest.mark.docker

NAME = "library-path-test"
NEEDY = "/tmp/libneedy.so"
LOAD = f"import ctypes; print(ctypes.CDLL('{NEEDY}').answer())"

# A library that asks for libcudart.so.12 by name alone: linked against a stand-in of that soname, which is not kept.
COMPILE = """
set -e
cd /tmp
echo 'int cudaRuntimeGetVersion(int* v);' > stub.c
gcc -shared -fPIC -Wl,-soname,libcudart.so.12 -o libcudart.so.12 stub.c
echo 'int answer(void) { return 42; }' > needy.c
gcc -shared -fPIC -Wl,--no-as-needed -o libneedy.so needy.c ./libcudart.so.12
"""

ENVIRONMENTS: Mapping[str, dict[str, str]] = {
    "unset": {},
    "set": {"LD_LIBRARY_PATH": "/usr/local/lib"},
    "an empty element first": {"LD_LIBRARY_PATH": ":/usr/local/lib"},
    "an empty element last": {"LD_LIBRARY_PATH": "/usr/local/lib:"},
    "an empty element between": {"LD_LIBRARY_PATH": "/usr/lib::/usr/local/lib"},
    "empty": {"LD_LIBRARY_PATH": ""},
}


@dataclass(frozen=True)
class Ground:
    engine: Engine
    base: str
    inspection: Inspection
    built: Built
    needy: bytes

    def load(self, image: str, environment: Mapping[str, str], program: str = LOAD, user: str = "12345") -> str:
        """What a program prints, or the last line of its error."""
        argv = [self.inspection.executable, "-c", program]
        done = self.engine.run(image, argv, files={NEEDY: self.needy}, user=user, env=environment, owner=NAME)
        return done.stdout if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    """The flagtree replica, and the image of it that adds the engine and the library path alone."""
    engine = Engine.connect()
    matrix = load_matrix()
    real = matrix.targets["flagtree"]
    base = resolve_base(engine, real, "replica")
    inspection = inspect_base(engine, base.reference)
    target = dataclasses.replace(real, name=NAME, components=(), runtime_lock=None, toolchain=None)
    plan = make_plan(
        matrix, target, [], inspection=inspection, base_kind="replica",
        sources=collect_sources(matrix, target, cache.REPOSITORY), cached=lambda key: False,
    )  # fmt: skip
    built = assemble(engine, plan, base=base, inspection=inspection, results=[], matrix=matrix)
    with engine.container(base.reference, ["sh", "-c", COMPILE], owner=NAME) as container:
        container.start()
        assert container.wait(120) == 0, container.output()
        needy = container.get(NEEDY)
    yield Ground(engine, base.reference, inspection, built, needy)
    for image in engine.client.images.list(filters={"label": f"{LABEL}.image={NAME}"}):
        engine.client.images.remove(image.id, force=True)


@pytest.mark.parametrize("environment", ENVIRONMENTS.values(), ids=ENVIRONMENTS.keys())
def test_the_library_loads_in_the_image_whatever_the_search_path_says(
    ground: Ground, environment: Mapping[str, str]
) -> None:
    failure = ground.load(ground.base, environment)
    assert failure == "OSError: libcudart.so.12: cannot open shared object file: No such file or directory"
    assert ground.load(ground.built.image_id, environment) == "42\n"


def test_the_base_hides_the_runtime_even_from_those_who_know_where_it_lies(ground: Ground) -> None:
    (hidden,) = [library for library in ground.inspection.cudart if library.soname == "libcudart.so.12"]
    folder = hidden.path.rpartition("/")[0]
    assert folder.startswith("/root/.triton/nvidia/cudart/")
    assert "cannot open shared object file" in ground.load(ground.base, {"LD_LIBRARY_PATH": folder})
    assert ground.load(ground.base, {"LD_LIBRARY_PATH": folder}, user="0") == "42\n"


def test_a_cuda_13_process_still_maps_one_runtime_of_its_own(ground: Ground) -> None:
    program = f"""
import ctypes, torch
ctypes.CDLL({NEEDY!r})
found = {{line.split()[-1] for line in open("/proc/self/maps") if "libcudart" in line}}
print("\\n".join(sorted(found)))
"""
    mapped = ground.load(ground.built.image_id, {}, program).split()
    own = [path for path in mapped if "libcudart.so.13" in path]
    assert own == [library.path for library in ground.inspection.cudart if library.soname == "libcudart.so.13"]
    assert [path for path in mapped if path not in own] == ["/opt/deepinfer/lib/libcudart.so.12.8.57"]


def test_the_image_declares_it_and_its_inspection_needs_no_second_cure(ground: Ground) -> None:
    assert ground.built.document["declared"]["cudart12"]["version"] == "12.8.57"
    assert ground.built.labels[f"{LABEL}.cudart12"] == "12.8.57"
    again = examine(ground.engine, ground.built.image_id, ground.inspection)
    assert again.copies == ()
    assert "the loader finds a libcudart.so.12 already" in again.notes[0]


def test_no_variable_of_the_image_is_part_of_the_cure(ground: Ground) -> None:
    environment = ground.engine.image_config(ground.built.image_id)["Config"]["Env"]
    assert not [entry for entry in environment if entry.startswith("LD_")]


@pytest.fixture(scope="module")
def odd_base(ground: Ground) -> str:
    """The base with a broken link, a text and a directory where a runtime should be, and without ldconfig."""
    script = (
        "mkdir -p /srv/text /srv/link /srv/folder/libcudart.so.12 && echo 'GROUP ( x )' > /srv/text/libcudart.so.12 && "
        "ln -s /gone/libcudart.so.12 /srv/link/libcudart.so.12 && rm -f /sbin/ldconfig /usr/sbin/ldconfig"
    )
    with ground.engine.container(ground.base, ["sh", "-c", script], user="0", owner=NAME) as container:
        container.start()
        assert container.wait(60) == 0, container.output()
        container.raw.commit("deepinfer-test", "odd-base", changes=[f"LABEL {LABEL}.image={NAME}"])
    return "deepinfer-test:odd-base"


def test_a_real_base_is_asked_what_its_candidates_are(ground: Ground, odd_base: str) -> None:
    odd = tuple(
        Library(f"/srv/{name}/libcudart.so.12", "libcudart.so.12") for name in ("text", "link", "folder", "gone")
    )
    inspection = dataclasses.replace(ground.inspection, cudart=odd)
    found = examine(ground.engine, odd_base, inspection)
    assert found.copies == ()
    assert sorted(found.notes) == [
        "/srv/folder/libcudart.so.12: cannot be read: Is a directory",
        "/srv/gone/libcudart.so.12: cannot be read: No such file or directory",
        "/srv/link/libcudart.so.12: a link to /gone/libcudart.so.12, which is not there",
        "/srv/text/libcudart.so.12: not an ELF file",
    ]


def test_a_base_without_ldconfig_is_told_and_not_changed(ground: Ground, odd_base: str) -> None:
    found = examine(ground.engine, odd_base, ground.inspection)
    assert found.copies == ()
    assert "libcudart.so.12 cannot be put on the base's library path: it has no ldconfig" in found.problem
