"""The verbs of `./run`. Thin: each reads its options, calls build/, prints, and ends with an exit code.

0 done, 1 usage, 2 matrix, 3 nothing selected, 4 the environment cannot, 5 a gate failed, 6 a component failed.
"""

from __future__ import annotations

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from build.command import folder, one_of, told_plainly, whole_number

NAMES = "by name: globs and comma lists, as in 'fla*,cpu'"
IMAGE = f"targets {NAMES}; a glob means images only, the host has to be named (default: every image)"
PLANNED = f"targets {NAMES} (default: every image, and the host)"
COMPONENT = "components by name: globs and comma lists (default: all)"
BASE = "auto: the vendor's image if it is here or can be pulled, else the replica; vendor; replica (default: auto)"
REGISTRY = "HOST:PORT of a registry that has the vendors' images under their usual paths (default: the vendors' own)"
JSON = "print JSON alone on stdout, of an error too"


def _finish(code: int) -> None:
    if code:
        raise Exit(code=code)


@task(auto_shortflags=False, help={"image": PLANNED, "component": COMPONENT, "base": BASE, "json": JSON})
def plan(c: Context, image: str = "*", component: str = "*", base: str = "auto", json: bool = False) -> None:
    """Show what a build would do, and change nothing; needs neither Docker nor a base.

    Example: ./run plan --image 'fla*' --json
    """
    with told_plainly(as_json=json):
        from build import verbs

        _finish(verbs.plan(image, component, one_of("base", base, verbs.BASES), as_json=json))


@task(
    auto_shortflags=False,
    help={
        "image": IMAGE,
        "component": COMPONENT + "; an image is only made of all of them",
        "base": BASE,
        "registry": REGISTRY,
        "accept-base": "go on although the base differs from what matrix.yaml expects",
        "keep-going": "after a failure do the rest, and list everything at the end",
        "jobs": "compiles at once (default: as many as processors and memory allow)",
        "offline": "host: a folder of packs, for a machine without a network",
        "replace-nccl": "host: replace the NCCL file that torch loads (`clean --host` puts it back)",
        "prefix": "host: the folder to install into (default: host/prefix in the build cache)",
        "warm": "compile the kernels of a run into the image, so that the first request compiles none (takes longer)",
        "json": JSON,
        "wheels-from": "HOST[:PORT]/PATH: take components that another machine compiled and pushed with "
        "`publish --wheels` from this registry, by their key, and compile the rest",
    },
)
def build(
    c: Context,
    image: str = "*",
    component: str = "*",
    base: str = "auto",
    registry: str = "",
    accept_base: bool = False,
    keep_going: bool = False,
    jobs: str = "",
    offline: str = "",
    replace_nccl: bool = False,
    prefix: str = "",
    wheels_from: str = "",
    warm: bool = False,
    json: bool = False,
) -> None:
    """Compile the components against a base, make the image, check it, and tag it.

    Example: ./run build --image flagtree
    """
    with told_plainly(as_json=json) as answer:
        from build import verbs
        from build.publish.location import Location

        options = verbs.BuildOptions(
            components=component,
            base=one_of("base", base, verbs.BASES),
            registry=registry,
            accept_base=accept_base,
            keep_going=keep_going,
            jobs=whole_number("jobs", jobs, at_least=1) if jobs else None,
            offline=folder("offline", offline),
            replace_nccl=replace_nccl,
            prefix=folder("prefix", prefix),
            wheels_from=Location.parse(wheels_from, flag="wheels-from") if wheels_from else None,
            warm=warm,
        )
        _finish(verbs.build(image, options, answer.give))


@task(auto_shortflags=False, help={"image": IMAGE, "base": BASE, "registry": REGISTRY, "json": JSON})
def inspect(c: Context, image: str = "*", base: str = "auto", registry: str = "", json: bool = False) -> None:
    """Show what a base really holds, beside what matrix.yaml expects.

    Example: ./run inspect --image flagtree --json
    """
    with told_plainly(as_json=json):
        from build import verbs

        _finish(verbs.inspect(image, one_of("base", base, verbs.BASES), registry=registry, as_json=json))


@task(
    auto_shortflags=False,
    help={
        "image": IMAGE,
        "gpus": "also run the GPU stage on this many GPUs (default: 0, without it)",
        "offline": "host: a folder of packs; every Triton in it is probed",
        "prefix": "host: the folder that was installed into (default: host/prefix in the build cache)",
        "json": JSON,
    },
)
def check(
    c: Context, image: str = "*", gpus: str = "0", offline: str = "", prefix: str = "", json: bool = False
) -> None:
    """Run the gates on finished images, and with --gpus N the GPU stage.

    Example: ./run check --image host --gpus 2
    """
    with told_plainly(as_json=json):
        from build import verbs

        _finish(
            verbs.check(
                image,
                gpus=whole_number("gpus", gpus, at_least=0),
                offline=folder("offline", offline),
                prefix=folder("prefix", prefix),
                as_json=json,
            )
        )


@task(
    auto_shortflags=False,
    help={
        "image": f"images {NAMES} (default: all that are built here)",
        "registry": "HOST[:PORT]/PATH to push to, as in registry.example.org:5000/team; `docker login` for a password",
        "archive": "write one image as an OCI archive into this file, for a cluster without a registry",
        "from": "load an archive that `publish --archive` wrote",
        "wheels": "push the compiled components by their key, for `build --wheels-from`, and no image",
        "read-back": "fetch every layer from the registry again and compare it, before the aliases are moved",
        "anyway": "publish an image without a record of passed gates, or one that a build would replace; "
        "with --from: take the immutable name from another image",
        "json": JSON,
    },
)
def publish(
    c: Context,
    image: str = "*",
    registry: str = "",
    archive: str = "",
    from_: str = "",
    wheels: bool = False,
    read_back: bool = False,
    anyway: bool = False,
    json: bool = False,
) -> None:
    """Push images to a registry and move their aliases, or write and load an archive.

    Example: ./run publish --image flagtree --registry registry.example.org:5000/team
    """
    with told_plainly(as_json=json) as answer:
        from build.publish import verb

        request = verb.Request(
            image=image,
            registry=registry,
            archive=folder("archive", archive),
            source=folder("from", from_),
            wheels=wheels,
            anyway=anyway,
            read_back=read_back,
        )
        _finish(verb.run(request, answer.give))


@task(
    auto_shortflags=False,
    help={
        "image": "an image by its name in matrix.yaml (globs and comma lists), or as Docker knows it",
        "manifest": "its manifest, or the folder that holds it (default: the build cache's)",
        "registry": "take manifest, SBOM and provenance from the registry that the image was pulled from",
        "key": "cosign's public key, to check the signature; with --sign the private key",
        "sign": "sign the manifest with cosign, if every fact is as recorded",
        "json": JSON,
    },
)
def verify(
    c: Context,
    image: str,
    manifest: str = "",
    registry: bool = False,
    key: str = "",
    sign: bool = False,
    json: bool = False,
) -> None:
    """Recompute what was recorded of a finished image, and name every fact that is not so any more.

    Example: ./run verify flagtree
    """
    with told_plainly(as_json=json):
        from build.attest import command

        path = folder("manifest", manifest)
        _finish(command.run(image, manifest=path, registry=registry, key=key, sign=sign, as_json=json))


@task(
    auto_shortflags=False,
    help={
        "image": IMAGE,
        "format": "table, json, or github: one line for `strategy.matrix` of a workflow (default: table)",
        "base": "kind of base: all, vendor or replica (default: all)",
        "hosted": "only what fits a hosted runner, for pull requests",
        "check": "first see that the files generated from matrix.yaml follow from it",
    },
)
def matrix(
    c: Context, image: str = "*", format: str = "table", base: str = "all", hosted: bool = False, check: bool = False
) -> None:
    """Show the jobs of continuous integration: images, bases, and the runners that have room for them.

    Example: ./run matrix --format github --image 'fla*'
    """
    with told_plainly(as_json=format == "json"):
        from build.ci import command

        form, kind = one_of("format", format, command.FORMATS), one_of("base", base, command.BASES)
        _finish(command.run(image, form=form, base=kind, hosted=hosted, check=check))


@task(auto_shortflags=False, help={"json": JSON, "online": "also ask the registries whether they answer"})
def doctor(c: Context, json: bool = False, online: bool = False) -> None:
    """Say what this machine has and lacks for a build, with the commands to type.

    Example: ./run doctor
    """
    with told_plainly(as_json=json):
        from build import doctor as rows

        _finish(rows.run(json=json, online=online))


@task(
    auto_shortflags=False,
    help={
        "image": f"remove images and containers of ours, {NAMES} (default: none)",
        "docker": "stop the Docker engine that ./run started; while containers run in it only with --yes",
        "cache": "remove the build cache; needs --yes",
        "host": "put the NCCL file that was replaced back, and remove the prefix",
        "prefix": "host: the folder that it was installed into (default: host/prefix in the build cache)",
        "yes": "do not ask",
    },
)
def clean(
    c: Context,
    image: str = "",
    docker: bool = False,
    cache: bool = False,
    host: bool = False,
    prefix: str = "",
    yes: bool = False,
) -> None:
    """Remove what the project made, and nothing else.

    Example: ./run clean --image 'fla*' --docker
    """
    with told_plainly():
        from build.clean import verb as cleaning

        where = folder("prefix", prefix)
        _finish(cleaning.run(images=image, docker=docker, cache=cache, host=host, prefix=where, yes=yes))


@task(
    auto_shortflags=False,
    help={
        "keep": "keep the images that the tests made",
        "all-images": "build, check and test every image, one at a time (default: cpu and flagtree)",
    },
)
def test(c: Context, keep: bool = False, all_images: bool = False) -> None:
    """Run the repository's own suites: unit tests, then the images. After `--`: pytest's own arguments.

    Example: ./run test -- tests/build -q
    """
    with told_plainly():
        from build import testing

        _finish(testing.run(c.remainder, keep=keep, all_images=all_images))
