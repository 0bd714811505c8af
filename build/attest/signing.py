"""Signatures by cosign, where it is installed: over the manifest, which holds the sums of all that lies beside it.

A key pair of one's own is used, and no transparency log: a cluster without a network can check it. cosign asks for the
key's password, or takes it from COSIGN_PASSWORD.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from build.attest.rows import Row
from build.call import CallFailed, call
from build.errors import EnvironmentCannot, UsageError

ABSENT = "cosign is not installed"
_INSTALL = "install cosign (https://docs.sigstore.dev/cosign/system_config/installation/)"


def bundle_of(manifest: Path) -> Path:
    """Where the signature of a manifest lies."""
    return manifest.with_name(f"{manifest.stem}.sigstore.json")


def sign(manifest: Path, key: str) -> Path:
    """Sign a manifest with a private key (a file, or what else cosign takes); returns the signature's file.

    Raises:
        UsageError: no key is named.
        EnvironmentCannot: cosign is not installed, or it does not sign.
    """
    if not key:
        raise UsageError(
            "--sign needs the private key", next_step="cosign generate-key-pair, then --sign --key cosign.key"
        )
    if shutil.which("cosign") is None:
        raise EnvironmentCannot(
            f"{ABSENT}, so nothing is signed",
            next_step=_INSTALL,
        )
    bundle = bundle_of(manifest)
    part = bundle.with_name(f".part-{bundle.name}")
    argv = ["cosign", "sign-blob", "--yes", "--key", key, "--bundle", str(part), "--tlog-upload=false"]
    # Since 2.6 the services to sign with come from a configuration unless that is switched off; before, unknown.
    if "--use-signing-config" in call("cosign", "sign-blob", "--help", quiet=True, check=False).stdout:
        argv.append("--use-signing-config=false")
    try:
        call(*argv, manifest)
        part.replace(bundle)
    except (CallFailed, FileNotFoundError) as problem:
        said = problem.tail.splitlines()[-1] if isinstance(problem, CallFailed) and problem.tail else str(problem)
        raise EnvironmentCannot(
            "cosign did not sign the manifest", cause=said, next_step="see whether key and COSIGN_PASSWORD are right"
        ) from problem
    finally:
        part.unlink(missing_ok=True)
    return bundle


def signature_row(manifest: Path, key: str) -> Row:
    """Whether the manifest's signature is by the owner of a public key; "not checked" where no key is named.

    Raises EnvironmentCannot where a key is named and cosign is not installed: who asks for it has to know.
    """
    bundle = bundle_of(manifest)
    if not bundle.is_file():
        if key:
            return Row(
                "signature", "signature", "differs", f"one by {key}", "", f"there is none: {bundle.name} is missing"
            )
        return Row("signature", "signature", "not checked", note="the manifest is not signed")
    if not key:
        return Row("signature", "signature", "not checked", note=f"there is one; --key cosign.pub checks {bundle.name}")
    if shutil.which("cosign") is None:
        raise EnvironmentCannot(
            f"{ABSENT}, so the signature cannot be checked", next_step=f"{_INSTALL}, or leave --key out"
        )
    argv = ["cosign", "verify-blob", "--key", key, "--bundle", str(bundle), "--insecure-ignore-tlog=true"]
    done = call(*argv, manifest, quiet=True, check=False)
    if done.returncode == 0:
        return Row("signature", "signature", "ok", note=f"by the owner of {key}")
    said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
    return Row("signature", "signature", "differs", f"one by the owner of {key}", f"cosign says: {said}")
