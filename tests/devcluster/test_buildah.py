"""A layer is put together from its skeleton and its files, to the byte."""

import base64
import gzip
import io
import json
import tarfile
from pathlib import Path

from devcluster.buildah import layer_content

FILES = {"etc/empty": b"", "etc/short": b"seven b", "usr/lib/long": bytes(range(256)) * 8192, "name with ü": b"x" * 512}


def packed() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in FILES.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def skeleton(archive: bytes) -> list[dict[str, object]]:
    """As tar-split writes it: pieces of the archive, and between them a reference for each file."""
    entries: list[dict[str, object]] = []
    at = 0
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        for member in opened:
            entries.append({"type": 2, "payload": base64.b64encode(archive[at : member.offset_data]).decode()})
            entries.append({"type": 1, "name": member.name, "size": member.size, "payload": "crc"})
            at = member.offset_data + member.size
    return [*entries, {"type": 2, "payload": base64.b64encode(archive[at:]).decode()}]


def test_layer_is_the_archive_it_was_made_from(tmp_path: Path) -> None:
    archive = packed()
    (tmp_path / "overlay-layers").mkdir()
    with gzip.open(tmp_path / "overlay-layers" / "id.tar-split.gz", "wt") as file:
        file.writelines(json.dumps(entry) + "\n" for entry in skeleton(archive))
    for name, content in FILES.items():
        target = tmp_path / "overlay" / "id" / "diff" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)

    assert b"".join(layer_content(tmp_path, "id")) == archive
