"""The one module that talks to Docker: the docker package to inspect and run, the command line for BuildKit builds.

No path of this machine is ever bind-mounted: files travel in the build context or through the archive calls, so that
DOCKER_HOST or a docker context may name a larger engine elsewhere.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, DockerException, ImageNotFound, NullResource

from build import cache, processes
from build.call import CallFailed, call
from build.container import Container, RunResult
from build.docker_client import build_command, client_of
from build.setup import docker_engine, engine_answer
from build.setup.endpoint import endpoint

LABEL = "io.deepinfer.hopper"
"""Everything that this project makes in Docker carries this label; nothing else is ever deleted."""
CACHE_LABEL = f"{LABEL}.cache"
"""On containers: the build cache of who made it. Builds with other caches, whose locks tell nothing here, may share
the engine: what they run is theirs."""
PROCESS_LABEL = f"{LABEL}.process"
"""On containers: the process that made it. While that one lives, nobody else takes the container for a leftover."""
_ANSWER_SECONDS = 600
"""For an answer of an engine that works: a commit or an export of a large image takes minutes."""


def in_use(container: Any) -> bool:
    """Whether the process that made this container of this cache still runs."""
    return processes.lives(container.labels.get(PROCESS_LABEL, ""))


class Engine:
    """A connection to a Docker engine: the one that DOCKER_HOST or a docker context names, else this machine's."""

    def __init__(self, client: docker.DockerClient) -> None:
        self.client = client

    @classmethod
    def connect(cls) -> Engine:
        """Connect. Raises EnvironmentCannot with the next step when no engine answers."""
        named = endpoint()
        try:
            client = client_of(named)
            client.ping()
        except (DockerException, OSError, ValueError) as problem:  # ValueError: an address that is none
            said = str(problem).splitlines()[0][:200]
            cause = said if "timed out" in said else engine_answer.refusal() or said
            raise docker_engine.unanswered(cause) from problem
        client.api.timeout = _ANSWER_SECONDS
        return cls(client)

    def image_id(self, reference: str) -> str | None:
        """`sha256:…` of a local image, None if it is not here, or no image can be called so."""
        try:
            return str(self.client.images.get(reference).id)
        except (ImageNotFound, NullResource, UnicodeEncodeError):
            return None
        except APIError as problem:
            if problem.status_code == 400 and "invalid reference" in str(problem.explanation):
                return None
            raise

    def image_config(self, reference: str) -> dict[str, Any]:
        """The image's attributes as the engine tells them (Config, RootFS, Size …)."""
        return dict(self.client.images.get(reference).attrs)

    def labels(self, reference: str) -> dict[str, str]:
        """The image's labels; empty if the image is not here or has none."""
        try:
            return dict(self.client.images.get(reference).labels)
        except ImageNotFound:
            return {}

    def images(self, **filters: str | list[str]) -> list[Any]:
        """The local images that pass the engine's filters (`label`, `reference`), newest first.

        What somebody removes between the engine's list and the look at each is left out.
        """
        found: dict[str, Any] = {}
        for entry in self.client.api.images(filters=filters):
            with contextlib.suppress(ImageNotFound):
                found[entry["Id"]] = self.client.images.get(entry["Id"])
        return list(found.values())

    def capacity(self) -> tuple[int, float]:
        """Processors and memory (GiB) of the machine that the engine runs on, which may be another one."""
        info = self.client.info()
        return int(info["NCPU"]), int(info["MemTotal"]) / 2**30

    def remove_images(self, labels: Mapping[str, str], *, keep: Sequence[str] = ()) -> list[str]:
        """Take away the names of our images with these labels, and the images with them; returns the names.

        Args:
            keep: names that stay. An image that a container still uses stays as well.
        """
        wanted = [f"{LABEL}=1", *(f"{name}={value}" for name, value in labels.items())]
        removed = []
        for image in self.images(label=wanted):
            for name in sorted(set(image.tags) - set(keep)):
                with contextlib.suppress(APIError):
                    self.client.images.remove(name)
                    removed.append(name)
        return removed

    def tag(self, reference: str, new: str) -> None:
        """Give a local image one more name."""
        repository, _, tag = new.rpartition(":")
        self.client.images.get(reference).tag(repository, tag)

    def build(
        self,
        context: Path,
        *,
        tag: str,
        dockerfile: Path | None = None,
        target: str | None = None,
        args: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        network: str = "none",
        log: Path,
        timeout: float = 3600,
    ) -> str:
        """Build an image with BuildKit from a local context; returns its id. Raises CallFailed with the log."""
        argv = [*build_command(), "build", "--progress=plain", f"--network={network}", "--tag", tag]
        argv += ["--label", f"{LABEL}=1"]
        if dockerfile is not None:
            argv += ["--file", str(dockerfile)]
        if target is not None:
            argv += ["--target", target]
        for name, value in (args or {}).items():
            argv += ["--build-arg", f"{name}={value}"]
        for name, value in (labels or {}).items():
            argv += ["--label", f"{name}={value}"]
        call(*argv, str(context), env={"DOCKER_BUILDKIT": "1"}, log=log, timeout=timeout)
        built = self.image_id(tag)
        if built is None:
            raise CallFailed(argv, 1, f"the build ended well, but no image is called {tag}", log)
        return built

    @contextlib.contextmanager
    def container(
        self,
        image: str,
        argv: Sequence[str],
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        workdir: str = "/",
        network: str = "none",
        memory_gib: float | None = None,
        owner: str = "",
        **options: Any,
    ) -> Iterator[Container]:
        """Create (not start) a container whose program replaces the image's entrypoint; remove it in the end.

        Args:
            owner: what this container serves ("flagtree/deep_gemm"); `sweep(owner)` removes what a kill left behind.
            options: passed to the engine as they are (`gpus`-like device requests, `ipc_mode`, `ulimits`).
        """
        if memory_gib is not None:
            options["mem_limit"] = int(memory_gib * 2**30)
        raw = self.client.containers.create(
            image,
            command=list(argv[1:]),
            entrypoint=[argv[0]],
            user=user,
            environment=dict(env or {}),
            working_dir=workdir,
            network_mode=network,
            labels={
                LABEL: "1",
                f"{LABEL}.owner": owner,
                CACHE_LABEL: cache.identity(),
                PROCESS_LABEL: processes.own_mark(),
            },
            **options,
        )
        try:
            yield Container(raw)
        finally:
            with contextlib.suppress(APIError):
                raw.remove(force=True)

    def run(
        self,
        image: str,
        argv: Sequence[str],
        *,
        files: Mapping[str, bytes | Path] | None = None,
        timeout: float = 300,
        **options: Any,
    ) -> RunResult:
        """Run a program in a fresh container (no network unless asked) and return how it ended."""
        with self.container(image, argv, **options) as container:
            if files:
                container.put(files, mode=0o755)
            container.start()
            status = container.wait(timeout)
            out, err = container.output()
            return RunResult(status, out, err)

    def owners(self, prefix: str) -> set[str]:
        """The owners, beginning with `prefix`, of the containers of this cache that are there."""
        return {raw.labels[f"{LABEL}.owner"] for raw in self._containers(prefix)}

    def sweep(self, owner: str) -> int:
        """Remove containers of this cache that an interrupted run of `owner` (a prefix) left; returns how many.

        Those of a process that lives stay: a `check` of the image that is built anew goes on.
        """
        stale = [raw for raw in self._containers(owner) if not in_use(raw)]
        for raw in stale:
            with contextlib.suppress(APIError):
                raw.remove(force=True)
        return len(stale)

    def _containers(self, owner: str) -> list[Any]:
        wanted: dict[str, Any] = {"label": [f"{LABEL}.owner", f"{CACHE_LABEL}={cache.identity()}"]}
        # Others may remove theirs between the engine's list and the look at each.
        found = self.client.containers.list(all=True, filters=wanted, ignore_removed=True)
        return [raw for raw in found if raw.labels[f"{LABEL}.owner"].startswith(owner)]
