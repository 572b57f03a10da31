"""What a run is measured with: the device, packages, and normgen's kernels."""

from __future__ import annotations

import hashlib
from importlib import metadata
from pathlib import Path

import torch
from results import Row

import normgen
from normgen import bundled

PACKAGES = ("torch", "triton", "liger-kernel", "quack-kernels", "nvidia-cutlass-dsl", "pycuda", "normgen")


def header_of(device: str, reasons: dict[str, str], commit: str) -> Row:
    """The device, versions of packages, kernels, commit, and why providers are absent."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            pass
    name = torch.cuda.get_device_name(0) if device == "cuda" else "cpu"
    versions |= {"torch": torch.__version__, "cuda": torch.version.cuda or ""}
    gone = {provider: reason for provider, reason in reasons.items() if reason}
    return {
        "device": name,
        "versions": versions,
        "kernels": _kernels(),
        "commit": commit,
        "absent": gone,
    }


def _kernels() -> str:
    """A digest of normgen's own files and specs, which decide what its kernels are."""
    digest, package = hashlib.sha256(), Path(normgen.__file__).parent
    for path in sorted(p for p in package.rglob("*") if p.is_file() and p.suffix != ".pyc"):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    for name in bundled.names():
        digest.update(name.encode() + b"\0" + bundled.read(name).text.encode())
    return digest.hexdigest()[:16]
