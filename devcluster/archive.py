"""An OCI image archive, written into a pipe, that leaves out the layers which its receiver has.

archive   oci-layout, index.json ── manifest ──┬── config
          blobs/sha256/…                       └── layers, uncompressed: a layer's digest is its diff id
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import IO

LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"

# containerd takes an image's full name from here.
NAME_ANNOTATION = "io.containerd.image.name"


@dataclass(frozen=True)
class Layer:
    """One layer. `chunks` gives its content, `size_bytes` in all, from the beginning each time."""

    digest: str
    size_bytes: int
    chunks: Callable[[], Iterable[bytes]]


@dataclass(frozen=True)
class Image:
    """An image's configuration, as the bytes of its JSON, and its layers from the bottom up."""

    config: bytes
    layers: tuple[Layer, ...]

    @cached_property
    def manifest(self) -> bytes:
        layers = [_descriptor(LAYER_TYPE, layer.digest, layer.size_bytes) for layer in self.layers]
        config = _descriptor(CONFIG_TYPE, digest_of(self.config), len(self.config))
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": config, "layers": layers}
        return json.dumps(manifest).encode()

    @property
    def digest(self) -> str:
        """The manifest's digest: the same content has the same."""
        return digest_of(self.manifest)

    def missing(self, present: Collection[str]) -> list[Layer]:
        """The layers that a receiver which has blobs of these digests lacks, each once."""
        lacking = {layer.digest: layer for layer in self.layers if layer.digest not in present}
        return list(lacking.values())


def write_archive(stream: IO[bytes], image: Image, name: str, present: Collection[str]) -> None:
    """Write the archive of an image under a name, without the layers that are present at the receiver's.

    Raises ValueError where a layer's content is not as long as its size says.
    """
    for chunk in _archive(image, name, present):
        stream.write(chunk)


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _archive(image: Image, name: str, present: Collection[str]) -> Iterator[bytes]:
    descriptor = _descriptor(MANIFEST_TYPE, image.digest, len(image.manifest))
    index = {"schemaVersion": 2, "manifests": [{**descriptor, "annotations": {NAME_ANNOTATION: name}}]}
    files = {
        "oci-layout": json.dumps({"imageLayoutVersion": "1.0.0"}).encode(),
        "index.json": json.dumps(index).encode(),
        _blob(image.digest): image.manifest,
        _blob(digest_of(image.config)): image.config,
    }
    for path, content in files.items():
        yield from _entry(path, len(content), [content])
    for layer in image.missing(present):
        yield from _entry(_blob(layer.digest), layer.size_bytes, layer.chunks())
    yield bytes(2 * tarfile.BLOCKSIZE)


def _entry(path: str, size_bytes: int, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """A file of a tar archive. tarfile's own writer wants a file to read from, and there is none."""
    header = tarfile.TarInfo(path)
    header.size = size_bytes
    yield header.tobuf(tarfile.PAX_FORMAT)
    written = 0
    for chunk in chunks:
        written += len(chunk)
        yield chunk
    if written != size_bytes:
        raise ValueError(f"{path} should have {size_bytes} bytes and has {written}")
    yield bytes(-size_bytes % tarfile.BLOCKSIZE)


def _descriptor(media_type: str, digest: str, size_bytes: int) -> dict[str, object]:
    return {"mediaType": media_type, "digest": digest, "size": size_bytes}


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"
