"""What is sent to the node: whole for the first time, without what it has after that."""

import hashlib
import io
import json
import tarfile

import pytest

from devcluster.archive import Image, Layer, write_archive

LOWER = b"lower layer" * 100
UPPER = b"upper layer"


def digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def layer(content: bytes) -> Layer:
    return Layer(digest(content), len(content), lambda: [content[:5], content[5:]])


IMAGE = Image(b'{"os": "linux"}', (layer(LOWER), layer(UPPER)))


def archived(present: set[str]) -> dict[str, bytes]:
    stream = io.BytesIO()
    write_archive(stream, IMAGE, "docker.io/kvtide/worker:dev-1", present)
    stream.seek(0)
    with tarfile.open(fileobj=stream) as archive:
        return {entry.name: archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("present", "sent"),
    [
        (set(), {LOWER, UPPER}),
        ({digest(LOWER)}, {UPPER}),
        ({digest(LOWER), digest(UPPER)}, set()),
        ({digest(b"something else")}, {LOWER, UPPER}),
    ],
)
def test_only_missing_layers_are_sent(present: set[str], sent: set[bytes]) -> None:
    files = archived(present)
    assert {content for content in files.values() if content in (LOWER, UPPER)} == sent


def test_every_blob_is_named_by_its_digest_and_reached_from_the_index() -> None:
    files = archived(present=set())
    blobs = {name: content for name, content in files.items() if name.startswith("blobs/")}
    assert all(name == "blobs/" + digest(content).replace(":", "/") for name, content in blobs.items())

    [entry] = json.loads(files["index.json"])["manifests"]
    assert entry["annotations"] == {"io.containerd.image.name": "docker.io/kvtide/worker:dev-1"}
    manifest = json.loads(blobs["blobs/" + entry["digest"].replace(":", "/")])
    assert [(part["digest"], part["size"]) for part in (manifest["config"], *manifest["layers"])] == [
        (digest(content), len(content)) for content in (IMAGE.config, LOWER, UPPER)
    ]


def test_a_layer_of_another_length_is_an_error_and_not_a_broken_archive() -> None:
    image = Image(b"{}", (Layer(digest(UPPER), len(UPPER) + 1, lambda: [UPPER]),))
    with pytest.raises(ValueError, match="should have 12 bytes and has 11"):
        write_archive(io.BytesIO(), image, "x", present=set())
