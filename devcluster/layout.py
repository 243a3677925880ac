"""An OCI image layout on disk, and archives of it that leave out what the receiver has.

    oci-layout   index.json ── manifest ──┬── config
    blobs/sha256/…                        └── layers, uncompressed: each is named by what is in it

A layer of gigabytes is sent once. Then it becomes a hole of the same size: buildah sees that it is there and does not
write it again, and the disk does not hold it a fourth time beside buildah's, containerd's and the unpacked one.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

MIB = 1 << 20
HOLLOW_FROM_BYTES = 16 * MIB
NAME = "org.opencontainers.image.ref.name"
CONTAINERD_NAME = "io.containerd.image.name"


@dataclass(frozen=True)
class Image:
    """One image of a layout: its manifest's descriptor, and the digests of its config and layers."""

    descriptor: dict[str, Any]
    config: str
    layers: tuple[str, ...]

    @property
    def digest(self) -> str:
        digest: str = self.descriptor["digest"]
        return digest

    @property
    def blobs(self) -> tuple[str, ...]:
        """Everything that it consists of."""
        return (self.digest, self.config, *self.layers)


@dataclass(frozen=True)
class Layout:
    """A folder in the OCI image layout."""

    folder: Path

    def blob(self, digest: str) -> Path:
        algorithm, _, value = digest.partition(":")
        return self.folder / "blobs" / algorithm / value

    def images(self) -> dict[str, Image]:
        """The images by the name they were pushed under."""
        index = self.folder / "index.json"
        if not index.exists():
            return {}
        found = {}
        for descriptor in json.loads(index.read_text())["manifests"]:
            manifest = json.loads(self.blob(descriptor["digest"]).read_text())
            layers = tuple(layer["digest"] for layer in manifest["layers"])
            found[descriptor["annotations"][NAME]] = Image(descriptor, manifest["config"]["digest"], layers)
        return found

    def to_send(self, image: Image, present: Collection[str]) -> list[str]:
        """The digests that an archive for a receiver with those blobs must hold.

        The manifest and the config always go, so that the receiver takes the image under its new name.
        """
        missing = [layer for layer in dict.fromkeys(image.layers) if layer not in present]
        return [image.digest, image.config, *missing]

    def hollow(self, digests: Collection[str]) -> list[str]:
        """Those of the digests whose blob is a hole: there by name and size only."""
        return [digest for digest in digests if is_hollow(self.blob(digest))]

    def write_archive(self, stream: IO[bytes], image: Image, name: str, digests: Collection[str]) -> None:
        """Write an OCI archive of the image under a name, with those of its blobs, into a stream."""
        descriptor = {**image.descriptor, "annotations": {CONTAINERD_NAME: name}}
        index = {"schemaVersion": 2, "manifests": [descriptor]}
        with tarfile.open(fileobj=stream, mode="w|", bufsize=MIB) as archive:
            _add(archive, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
            _add(archive, "index.json", json.dumps(index).encode())
            for digest in digests:
                path = self.blob(digest)
                archive.add(path, arcname=str(path.relative_to(self.folder)))

    def hollow_out(self, digests: Collection[str]) -> None:
        """Turn the large ones of these blobs into holes: whoever needs them has them."""
        for digest in digests:
            path = self.blob(digest)
            size = path.stat().st_size
            if size >= HOLLOW_FROM_BYTES:
                os.truncate(path, 0)
                os.truncate(path, size)

    def drop(self, digests: Collection[str]) -> None:
        """Delete blobs; the next push writes them again."""
        for digest in digests:
            self.blob(digest).unlink(missing_ok=True)

    def collect(self) -> None:
        """Delete the blobs that no image of the index needs."""
        needed = {digest for image in self.images().values() for digest in image.blobs}
        self.drop([digest for digest in self._digests() if digest not in needed])

    def _digests(self) -> Iterator[str]:
        for path in (self.folder / "blobs").glob("*/*"):
            yield f"{path.parent.name}:{path.name}"


def is_hollow(path: Path) -> bool:
    """Whether a large file takes no space on the disk."""
    status = path.stat()
    return status.st_size >= HOLLOW_FROM_BYTES and status.st_blocks == 0


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))
