"""The one module that talks to Docker: the docker package to inspect and run, the command line for BuildKit builds.

No path of this machine is ever bind-mounted: files travel in the build context or through the archive calls, so that
DOCKER_HOST or a docker context may name a larger engine elsewhere.
"""

from __future__ import annotations

import contextlib
import functools
import io
import shutil
import tarfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.tls import TLSConfig

from build import cache, processes
from build.call import CallFailed, call
from build.errors import EnvironmentCannot
from build.setup.endpoint import Endpoint, endpoint

LABEL = "io.deepinfer.hopper"
"""Everything that this project makes in Docker carries this label; nothing else is ever deleted."""
CACHE_LABEL = f"{LABEL}.cache"
"""On containers: the build cache of who made it. Builds with other caches, whose locks tell nothing here, may share
the engine: what they run is theirs."""
PROCESS_LABEL = f"{LABEL}.process"
"""On containers: the process that made it. While that one lives, nobody else takes the container for a leftover."""


@dataclass(frozen=True)
class RunResult:
    """How a container's program ended: status (128+signal when killed) and what it printed."""

    returncode: int
    stdout: str
    stderr: str


_CONNECT_SECONDS = 20
"""For an engine to say that it is there; one that hangs is none."""
_ANSWER_SECONDS = 600
"""For an answer of an engine that works: a commit or an export of a large image takes minutes."""


class Container:
    """A created container of ours. Files go in and out by archive; `Engine.container` removes it in the end."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def put(self, files: Mapping[str, bytes | Path], *, mode: int = 0o644, uid: int = 0) -> None:
        """Write files (absolute path in the container -> bytes, or a local file or folder) into the container."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for target, content in files.items():
                _add(archive, target.lstrip("/"), content, mode, uid)
        self.raw.put_archive("/", buffer.getvalue())

    def put_tar(self, path: str, data: bytes) -> None:
        """Unpack a tar archive below `path` of the container."""
        self.raw.put_archive(path, data)

    def get(self, path: str) -> bytes:
        """The bytes of one file. Raises FileNotFoundError."""
        with tarfile.open(fileobj=io.BytesIO(self.get_tar(path))) as archive:
            for member in archive:
                if member.isfile():
                    handle = archive.extractfile(member)
                    assert handle is not None
                    return handle.read()
        raise FileNotFoundError(path)

    def get_tar(self, path: str) -> bytes:
        """A tar archive of a file or folder; its members start with the last part of `path`."""
        try:
            chunks, _ = self.raw.get_archive(path)
        except NotFound as missing:
            raise FileNotFoundError(path) from missing
        return b"".join(chunks)

    def start(self) -> None:
        """Start the container's program."""
        self.raw.start()

    def follow(self, log: Path) -> None:
        """Append what the program prints to `log` until it ends."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            for chunk in self.raw.logs(stream=True, follow=True):
                out.write(chunk)
                out.flush()

    def wait(self, timeout: float | None = None) -> int:
        """The program's exit status; killed (status 124) after `timeout` seconds."""
        late = threading.Event()

        def end() -> None:
            late.set()
            self.kill()

        killer = threading.Timer(timeout, end) if timeout is not None else None
        if killer is not None:
            killer.start()
        try:
            status = int(self.raw.wait()["StatusCode"])
        finally:
            if killer is not None:
                killer.cancel()
        return 124 if late.is_set() and status == 137 else status

    def output(self) -> tuple[str, str]:
        """Everything printed on stdout and stderr so far."""
        out = self.raw.logs(stdout=True, stderr=False)
        err = self.raw.logs(stdout=False, stderr=True)
        return out.decode(errors="replace"), err.decode(errors="replace")

    def kill(self) -> None:
        """End the program at once; nothing happens if it has ended already."""
        with contextlib.suppress(APIError):
            self.raw.kill()


def _add(archive: tarfile.TarFile, name: str, content: bytes | Path, mode: int, uid: int) -> None:
    def own(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = uid
        info.uname = info.gname = ""
        return info

    if isinstance(content, Path):
        archive.add(content, arcname=name, filter=own)
        return
    info = own(tarfile.TarInfo(name))
    info.size = len(content)
    info.mode = mode
    archive.addfile(info, io.BytesIO(content))


def in_use(container: Any) -> bool:
    """Whether the process that made this container of this cache still runs."""
    return processes.lives(container.labels.get(PROCESS_LABEL, ""))


@functools.cache
def build_command() -> tuple[str, ...]:
    """The docker command that can build with BuildKit: a client with buildx, or one old enough to have it built in."""
    for candidate in (shutil.which("docker"), "/usr/bin/docker"):
        if candidate is None or not Path(candidate).exists():
            continue
        if call(candidate, "buildx", "version", quiet=True, check=False).returncode == 0:
            return (candidate,)
        version = call(candidate, "--version", quiet=True, check=False).stdout
        major = version.partition("version ")[2].split(".")[0]
        # Clients before 23 have BuildKit built in; later ones need the buildx plug-in.
        if candidate == "/usr/bin/docker" and major.isdigit() and int(major) < 23:
            return (candidate,)
    raise EnvironmentCannot(
        "no docker command here can build with BuildKit",
        cause="the client is newer than 22 and the buildx plug-in is not installed",
        next_step="install the distribution's docker.io package, or docker-buildx",
    )


def _client(named: Endpoint) -> docker.DockerClient:
    """A client of the docker package, which by itself knows DOCKER_HOST and no contexts."""
    by_ssh = named.host.startswith("ssh://")  # through the ssh command, so that the user's own settings count
    if not named.of_context:
        return docker.from_env(timeout=_CONNECT_SECONDS, use_ssh_client=by_ssh)
    tls: TLSConfig | bool = False
    if named.certificates is not None:
        ca, cert, key = (str(named.certificates / name) for name in ("ca.pem", "cert.pem", "key.pem"))
        pair = (cert, key) if Path(cert).is_file() and Path(key).is_file() else None
        tls = TLSConfig(client_cert=pair, ca_cert=ca if Path(ca).is_file() else None, verify=not named.unverified)
    return docker.DockerClient(base_url=named.host, tls=tls, timeout=_CONNECT_SECONDS, use_ssh_client=by_ssh)


class Engine:
    """A connection to a Docker engine: the one that DOCKER_HOST or a docker context names, else this machine's."""

    def __init__(self, client: docker.DockerClient) -> None:
        self.client = client

    @classmethod
    def connect(cls) -> Engine:
        """Connect. Raises EnvironmentCannot with the next step when no engine answers."""
        named = endpoint()
        try:
            client = _client(named)
            client.ping()
        except (DockerException, OSError, ValueError) as problem:  # ValueError: an address that is none
            raise EnvironmentCannot(
                f"no Docker engine answers at {named.named_by or 'the default socket'}",
                cause=str(problem).splitlines()[0][:200],
                next_step="run `./run doctor`; `./run build` as root installs and starts one",
            ) from problem
        client.api.timeout = _ANSWER_SECONDS
        return cls(client)

    def image_id(self, reference: str) -> str | None:
        """`sha256:…` of a local image, None if it is not here."""
        try:
            return str(self.client.images.get(reference).id)
        except ImageNotFound:
            return None

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
        secrets: Mapping[str, Path] | None = None,
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
        for name, path in (secrets or {}).items():
            argv += ["--secret", f"id={name},src={path}"]
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
