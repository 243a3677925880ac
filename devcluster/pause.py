"""The image of pod sandboxes: one static program, packed here, because there is no registry to pull it from."""

from __future__ import annotations

import io
import json
import platform
import tarfile
from pathlib import Path

from devcluster import containerd
from devcluster.archive import Image, Layer, digest_of, write_archive
from devcluster.binaries import binary
from devcluster.config import PAUSE_IMAGE

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def load() -> None:
    """Import the image into containerd, if the same is not there."""
    image = pack(Path(binary("pause")).read_bytes())
    if image.digest not in containerd.ctr("images", "list", f"name=={PAUSE_IMAGE}"):
        containerd.import_image(lambda stream: write_archive(stream, image, PAUSE_IMAGE, present=()))


def pack(program: bytes) -> Image:
    """An image that holds nothing but a program, and runs it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        entry = tarfile.TarInfo("pause")
        entry.size, entry.mode = len(program), 0o755
        archive.addfile(entry, io.BytesIO(program))
    content = packed.getvalue()
    layer = Layer(digest_of(content), len(content), lambda: [content])
    machine = platform.machine()
    config = {
        "architecture": ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "config": {"Entrypoint": ["/pause"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [layer.digest]},
    }
    return Image(json.dumps(config).encode(), (layer,))
