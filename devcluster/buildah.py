"""buildah with a store of its own in the cache, and images read out of that store layer by layer.

buildah's own push writes every layer every time, gigabytes of them for a changed line of code. The store is simple
enough to read (github.com/containers/storage, stable since 2016):

    overlay-images/images.json      an image's name → its top layer
    overlay-layers/layers.json      a layer → its parent, digest and size
    overlay-layers/ID.tar-split.gz  a layer's archive without its files' content (github.com/vbatts/tar-split)
    overlay/ID/diff                 those files
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from devcluster.archive import Image, Layer
from devcluster.paths import BUILDAH_ROOT, INSTANCE

RUNTIME_FOLDER = Path("/run") / f"{INSTANCE}-buildah"
CHUNK_BYTES = 1 << 20
# Of a skeleton's entries: a piece of the archive itself. The others stand for a file's content.
SEGMENT_TYPE = 2


def buildah(*arguments: str) -> str:
    """Run buildah on our store. Raises RuntimeError with the end of what it said."""
    options = ["--root", str(BUILDAH_ROOT), "--runroot", str(RUNTIME_FOLDER), "--storage-driver", "overlay"]
    done = subprocess.run(["buildah", *options, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
        raise RuntimeError(f"`buildah {' '.join(arguments)}` failed:\n{said}")
    return done.stdout


def has_image(name: str) -> bool:
    return name in buildah("images", "--format", "{{.Name}}:{{.Tag}}").split()


def stored_image(name: str) -> Image:
    """An image of the store, by its full name. Raises RuntimeError where there is none."""
    config = json.loads(buildah("inspect", "--type", "image", name))["OCIv1"]
    records = {record["id"]: record for record in _read("overlay-layers/layers.json")}
    tops = [image["layer"] for image in _read("overlay-images/images.json") if name in image.get("names", [])]
    chain: list[dict[str, Any]] = []
    layer = tops[0] if tops else None
    while layer:
        chain.append(records[layer])
        layer = records[layer].get("parent")
    layers = tuple(
        Layer(record["diff-digest"], record["diff-size"], partial(layer_content, BUILDAH_ROOT, record["id"]))
        for record in reversed(chain)
    )
    described = config["rootfs"]["diff_ids"]
    if [layer.digest for layer in layers] != described:
        raise RuntimeError(f"{BUILDAH_ROOT} does not hold {name} as expected: layers {described}; delete that folder")
    return Image(json.dumps(config).encode(), layers)


def layer_content(store: Path, layer: str) -> Iterator[bytes]:
    """The bytes of a layer's archive, put together again from its skeleton and its files."""
    with gzip.open(store / "overlay-layers" / f"{layer}.tar-split.gz") as skeleton:
        for line in skeleton:
            entry = json.loads(line)
            if entry["type"] == SEGMENT_TYPE:
                yield base64.b64decode(entry["payload"])
            elif entry.get("size"):
                yield from _file_content(store / "overlay" / layer / "diff", entry)


def _file_content(folder: Path, entry: dict[str, Any]) -> Iterator[bytes]:
    # A name that is not UTF-8 comes as its bytes.
    name = os.fsdecode(base64.b64decode(entry["name_raw"])) if "name_raw" in entry else entry["name"]
    with (folder / name.lstrip("/")).open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def _read(name: str) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = json.loads((BUILDAH_ROOT / name).read_text())
    return content
