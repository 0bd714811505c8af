"""Gates against real images with planted faults: the gate that is meant fails and names the file, and no other does."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker.errors import ImageNotFound

from build.bases.inspect import inspect_base
from build.cache import REPOSITORY
from build.containers import Engine
from build.gates.catalogue import NAMES
from build.gates.result import GateResult
from build.gates.run import run_gates
from build.inspection import Inspection
from build.matrix.model import Component, Source, Target
from build.plan import Cell, TargetPlan

pytestmark = pytest.mark.docker

BASE = "deepinfer-base:cpu-replica"
SITE = "/usr/local/lib/python3.11/dist-packages"
OURS = "/opt/deepinfer/site"
EXTENSION = "_C.cpython-311-x86_64-linux-gnu.so"
DOCUMENT = '{"schema": 1}\n'
LABELS = {
    **{f"org.opencontainers.image.{name}": "test" for name in ("title", "revision", "source", "base.name")},
    "org.opencontainers.image.base.digest": "sha256:" + "0" * 64,
    "org.opencontainers.image.version": "0.1.0",
    "org.opencontainers.image.created": "2026-11-30T00:00:00Z",
    "io.deepinfer.hopper.manifest": f"sha256:{hashlib.sha256(DOCUMENT.encode()).hexdigest()}",
}

MODULE = r"""
#include <Python.h>
#include <string>
#ifdef PLANTED
namespace c10 { struct Tensor_ { static int planted(int); }; }
#endif
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit__C() {
#ifdef CRASH
    *static_cast<volatile int*>(nullptr) = 1;
#endif
#ifdef PLANTED
    if (c10::Tensor_::planted(1)) return nullptr;
#endif
    PyObject* module = PyModule_Create(&definition);
    if (module) PyModule_AddStringConstant(module, "name", std::to_string(42).append(64, 'x').c_str());
    return module;
}
"""

DOCKERFILE = f"""
FROM {BASE} AS compile
COPY module.cpp nccl.c /native/
RUN cd /native \
 && export CXXFLAGS="-O1 -fPIC -shared -I/usr/include/python3.11 module.cpp" \
 && g++ $CXXFLAGS -o good.so && g++ $CXXFLAGS -DCRASH -o crash.so \
 && g++ $CXXFLAGS -DPLANTED -o planted.so \
 && g++ $CXXFLAGS -static-libstdc++ -static-libgcc -o static.so \
 && gcc -shared -fPIC -Wl,-soname,libnccl.so.2 -o libnccl.so.2 nccl.c \
 && gcc -shared -fPIC -Wl,-soname,liblost.so.1 -o liblost.so.1 nccl.c \
 && g++ $CXXFLAGS -Wl,--no-as-needed liblost.so.1 -o needy.so \
 && strip --strip-unneeded *.so
FROM {BASE} AS good
COPY site/ {SITE}/
COPY deepinfer /usr/local/bin/deepinfer
COPY ours/good {OURS}/good
COPY --from=compile /native/good.so {OURS}/good/{EXTENSION}
COPY image.json /opt/deepinfer/image.json
RUN useradd --uid 10001 --create-home deepinfer && mkdir -m 1777 /cache && chmod 0755 /usr/local/bin/deepinfer
ENV DEEPINFER_CACHE_DIR=/cache
USER deepinfer
ENTRYPOINT ["deepinfer"]
HEALTHCHECK CMD ["python3", "-c", "import deepinfer"]

FROM good AS broken
USER 0
COPY ours/ {OURS}/
COPY --from=compile /native/crash.so {OURS}/crash/{EXTENSION}
COPY --from=compile /native/static.so {OURS}/static/{EXTENSION}
COPY --from=compile /native/planted.so {OURS}/planted/{EXTENSION}
COPY --from=compile /native/needy.so {OURS}/needy/{EXTENSION}
COPY --from=compile /native/good.so {OURS}/closed/{EXTENSION}
COPY --from=compile /native/good.so {OURS}/changed/{EXTENSION}
COPY --from=compile /native/good.so {OURS}/header/{EXTENSION}
COPY --from=compile /native/libnccl.so.2 {OURS}/nccl_twice/
COPY --from=compile /native/libnccl.so.2 /opt/nccl/
RUN chmod 0600 {OURS}/closed/{EXTENSION} && chmod 0640 {OURS}/header/kernel.cuh
USER deepinfer

FROM good AS misled
USER 0
RUN sed -i 's/^Version: .*/Version: 0.0.1/' {SITE}/sympy-*.dist-info/METADATA \
 && echo 'import os; os.environ["USE_FLAGGEMS"] = "1"' > {SITE}/enable.pth \
 && echo {OURS} > {SITE}/deepinfer.pth \
 && printf '[global]\\nindex-url = https://me:secret@packages.example/simple\\n' > /etc/pip.conf \
 && echo 'machine packages.example login me password secret' > /root/.netrc
ENV FLAGGEMS_ENABLE=1
HEALTHCHECK CMD ["false"]
LABEL io.deepinfer.hopper.torch=1.0
"""

COMMAND = "#!/usr/bin/python3\nimport sys\nfrom deepinfer.cli import main\nsys.exit(main())\n"
TWICE = """
import ctypes
for folder in ("/opt/nccl", "/opt/deepinfer/site/nccl_twice"):
    ctypes.CDLL(folder + "/libnccl.so.2")
"""
BROKEN = ("static", "planted", "needy", "closed", "header", "changed", "nccl_twice", "crash")
"""Components of the image with faults; the crash comes last, because it ends the process that imports everything."""


def _plan(inspection: Inspection, names: tuple[str, ...]) -> TargetPlan:
    target = Target("gates-test", "test", "image", (*names, "deep_ep"))
    made = [Component(name, name, "wheel", "1.0", Source(path="."), module=name) for name in names]
    deep_ep = Component("deep_ep", "DeepEP", "wheel", "2.5.0", Source(path="."), module="deep_ep")
    cells = [Cell("gates-test", component, "build", key="0" * 64) for component in made]
    cells.append(Cell("gates-test", deep_ep, "unsupported", reason="CUDA is missing in the base"))
    return TargetPlan(target, inspection, "replica", tuple(cells), "1" * 64)


@pytest.fixture(scope="module")
def engine() -> Engine:
    found = Engine.connect()
    if found.image_id(BASE) is None:
        pytest.skip(f"{BASE} is not here: ./run build --image cpu --base replica makes it")
    return found


@pytest.fixture(scope="module")
def inspection(engine: Engine) -> Inspection:
    return inspect_base(engine, BASE)


@pytest.fixture(scope="module")
def context(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The build context. In the end the images are removed."""
    folder = tmp_path_factory.mktemp("gates") / "context"
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(REPOSITORY / "deepinfer", folder / "site" / "deepinfer", ignore=ignored)
    (folder / "module.cpp").write_text(MODULE)
    (folder / "nccl.c").write_text("int ncclGetVersion(int* version) { *version = 23203; return 0; }\n")
    (folder / "deepinfer").write_text(COMMAND)
    (folder / "image.json").write_text(DOCUMENT)
    (folder / "Dockerfile").write_text(DOCKERFILE)
    for name in ("good", *BROKEN):
        package = folder / "ours" / name
        package.mkdir(parents=True)
        text = TWICE if name == "nccl_twice" else "from . import _C\n"
        (package / "__init__.py").write_text(text + '__version__ = "1.0"\n')
        (package / "kernel.cuh").write_text("// a header for the JIT\n")
    yield folder
    for stage in ("good", "broken", "misled"):
        with contextlib.suppress(ImageNotFound):
            engine.client.images.remove(f"deepinfer-test:gates-{stage}")


def _gates(
    engine: Engine, context: Path, inspection: Inspection, stage: str, names: tuple[str, ...], **labels: str
) -> dict[str, GateResult]:
    tag = f"deepinfer-test:gates-{stage}"
    engine.build(context, tag=tag, target=stage, labels={**LABELS, **labels}, log=context.parent / f"{stage}.log")
    results = run_gates(engine, tag, _plan(inspection, names), inspection)
    assert tuple(result.name for result in results) == NAMES
    return {result.name: result for result in results}


@pytest.fixture(scope="module")
def good(engine: Engine, context: Path, inspection: Inspection) -> dict[str, GateResult]:
    return _gates(engine, context, inspection, "good", ("good",))


@pytest.fixture(scope="module")
def broken(engine: Engine, context: Path, inspection: Inspection) -> dict[str, GateResult]:
    """Many components, each with a fault of its own."""
    with pytest.MonkeyPatch.context() as patch:
        artefacts = {"changed": {"changed/kernel.cuh": "f" * 64, "changed/gone.cuh": "f" * 64}}
        patch.setattr("build.gates.run.expected_files", lambda plan, document: artefacts)
        return _gates(engine, context, inspection, "broken", BROKEN)


@pytest.fixture(scope="module")
def misled(engine: Engine, context: Path, inspection: Inspection) -> dict[str, GateResult]:
    """A sound component in surroundings that were tampered with."""
    version = {"org.opencontainers.image.version": "9.9"}
    return _gates(engine, context, inspection, "misled", ("good",), **version)


def test_a_good_image_passes_and_says_what_does_not_apply(good: dict[str, GateResult]) -> None:
    assert [(result.name, result.detail) for result in good.values() if not result.ok] == []
    not_applicable = {result.name: result.skipped_reason for result in good.values() if result.state == "n/a"}
    assert set(not_applicable) == {"one_nccl", "one_cudart", "toolchain", "library_path", "warm"}
    assert "CPU build" in not_applicable["one_nccl"]
    assert "not judged: deep_ep: unsupported" in good["imports"].detail
    assert "7/7" in good["probe"].detail


@pytest.mark.parametrize(
    ("component", "gate", "words"),
    [
        ("crash", "imports", ["killed by SIGSEGV", f"{OURS}/crash/__init__.py"]),
        ("static", "libstdcxx_shared", [f"{OURS}/static/{EXTENSION}", "a copy of libstdc++"]),
        ("planted", "symbols", [f"{OURS}/planted/{EXTENSION}: undefined c10::Tensor_::planted(int)"]),
        ("needy", "needed", [f"{OURS}/needy/{EXTENSION} -> liblost.so.1"]),
        ("closed", "readable", [f"{OURS}/closed/{EXTENSION}: -rw-------, owner 0, closed to uid 12345"]),
        ("header", "readable", [f"{OURS}/header/kernel.cuh: -rw-r-----"]),
        (
            "nccl_twice",
            "one_nccl",
            ["2 files of libnccl.so.2", f"{OURS}/nccl_twice/libnccl.so.2 and /opt/nccl/libnccl.so.2"],
        ),
        (
            "changed",
            "ours",
            [f"{OURS}/changed/kernel.cuh has sha256", f"{OURS}/changed/gone.cuh of the"],
        ),
    ],
)
def test_a_component_fault_fails_the_gate_that_is_meant_and_no_other(
    broken: dict[str, GateResult], component: str, gate: str, words: list[str]
) -> None:
    naming = [name for name, result in broken.items() if not result.ok and f"{OURS}/{component}/" in result.detail]
    assert naming == [gate], broken[gate].detail
    for word in words:
        assert word in broken[gate].detail


def test_what_is_sound_beside_faulty_components_passes(broken: dict[str, GateResult]) -> None:
    failed = {name for name, result in broken.items() if not result.ok}
    meant = {"readable", "needed", "symbols", "libstdcxx_shared", "one_nccl", "imports", "ours"}
    assert failed == meant, {name: broken[name].detail for name in failed - meant}
    assert broken["vendor"].state == broken["pins"].state == broken["probe"].state == "passed"


@pytest.mark.parametrize(
    ("gate", "words"),
    [
        ("pins", ["sympy is 0.0.1", "the base has 1."]),
        ("flaggems_off", [f"{SITE}/enable.pth", "FLAGGEMS_ENABLE=1"]),
        ("vendor", [f"`import good` leads to {OURS}/good/__init__.py", f"{OURS} is on the path of every program"]),
        ("layers", ["/etc/pip.conf: holds a URL with a password", "/root/.netrc"]),
        (
            "entrypoint",
            ["run as root", "the health check fails", "version says 9.9", "io.deepinfer.hopper.torch says 1.0"],
        ),
    ],
)
def test_a_fault_around_the_components_is_named(misled: dict[str, GateResult], gate: str, words: list[str]) -> None:
    assert misled[gate].state == "failed"
    for word in words:
        assert word in misled[gate].detail


def test_nothing_else_fails_in_tampered_surroundings(misled: dict[str, GateResult]) -> None:
    failed = {name for name, result in misled.items() if not result.ok}
    assert failed == {"vendor", "pins", "flaggems_off", "entrypoint", "layers"}


def test_no_container_of_the_gates_is_left(engine: Engine, good: dict[str, GateResult]) -> None:
    owners = [raw.labels.get("io.deepinfer.hopper.owner", "") for raw in engine.client.containers.list(all=True)]
    assert [owner for owner in owners if owner.startswith("gates-test/")] == []
