"""The image of pod sandboxes: one static program, packed here, because there is no registry to pull it from."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
import tempfile
from pathlib import Path

from devcluster import containerd
from devcluster.binaries import binary
from devcluster.config import PAUSE_IMAGE
from devcluster.layout import Image, Layout

LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"


def load() -> None:
    """Import the image into containerd, if the same is not there."""
    with tempfile.TemporaryDirectory() as folder:
        layout = Layout(Path(folder))
        image = _pack(layout, Path(binary("pause")).read_bytes())
        if image.digest in containerd.ctr("images", "list", f"name=={PAUSE_IMAGE}"):
            return
        containerd.import_image(lambda stream: layout.write_archive(stream, image, PAUSE_IMAGE, image.blobs))


def _pack(layout: Layout, program: bytes) -> Image:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        entry = tarfile.TarInfo("pause")
        entry.size, entry.mode = len(program), 0o755
        archive.addfile(entry, io.BytesIO(program))
    layer = _store(layout, packed.getvalue(), LAYER_TYPE)
    config = {
        "architecture": _architecture(),
        "os": "linux",
        "config": {"Entrypoint": ["/pause"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    }
    described = _store(layout, json.dumps(config).encode(), CONFIG_TYPE)
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": described, "layers": [layer]}
    descriptor = _store(layout, json.dumps(manifest).encode(), MANIFEST_TYPE)
    return Image(descriptor, str(described["digest"]), (str(layer["digest"]),))


def _architecture() -> str:
    machine = platform.machine()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def _store(layout: Layout, content: bytes, media_type: str) -> dict[str, object]:
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    layout.blob(digest).parent.mkdir(parents=True, exist_ok=True)
    layout.blob(digest).write_bytes(content)
    return {"mediaType": media_type, "digest": digest, "size": len(content)}
