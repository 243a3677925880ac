"""The operator's and the worker's images: built from their Dockerfiles, and loaded into the node.

Debian's buildah builds from the same Dockerfiles that Docker takes; only the base image is made here, because there
is no registry to pull one from. A layer that the node has does not move again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from devcluster import containerd, mounts, packages
from devcluster.archive import write_archive
from devcluster.buildah import RUNTIME_FOLDER, buildah, has_image, stored_image
from devcluster.paths import BUILDAH_ROOT, HOME, REPOSITORY
from devcluster.state import locked, required
from devcluster.steps import step

PARTS = ("operator", "worker")

# Tags that stay for each part, so that the pods of a rollout can go back to one.
KEPT_TAGS = 3
LOADED = HOME / "images.json"

# What stands here for the `python:3.x-slim` of users' builds.
BASE_SUITE = "bookworm"
BASE_PACKAGES = ("python3", "python3-venv", "ca-certificates")
BASE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

CERTIFICATES = Path("/etc/ssl/certs")


def build_and_load(parts: Sequence[str] = PARTS, source: Path = REPOSITORY) -> dict[str, str]:
    """Build the images of these parts, load what the node lacks of them, and give each part's image by name and tag.

    source: another checkout of the repository, such as one of an earlier commit

    The tag is the beginning of the image's digest: the same content has the same name. Raises RuntimeError with the
    build's last words, or where the cluster is not up.
    """
    required()
    with locked("images"):
        if missing := packages.missing(packages.IMAGES):
            with step(f"installing {', '.join(missing)}"):
                packages.install(packages.IMAGES)
        base = _base_image()
        for part in parts:
            with step(f"building the {part}'s image"):
                _build(part, base, source)
            with step(f"loading the {part}'s image into the node"):
                _remember(part, _load(part, source))
        # What no name leads to any more: the layers of earlier builds. A build that was cut off leaves a container,
        # which holds on to its layers.
        buildah("rm", "--all")
        buildah("rmi", "--prune")
        mounts.unmount_below(BUILDAH_ROOT)
        mounts.unmount_below(RUNTIME_FOLDER)
        return {part: tags[-1] for part, tags in loaded().items()}


def loaded() -> dict[str, list[str]]:
    """The images in the node by part, the newest last."""
    found: dict[str, list[str]] = json.loads(LOADED.read_text()) if LOADED.exists() else {}
    return found


def _build(part: str, base: str, source: Path) -> None:
    options = ["--layers", "--isolation", "chroot", "--network", "host", "--format", "oci"]
    options += ["--build-arg", f"BASE={base}"]
    if os.environ.get("PIP_CERT"):
        # Behind a certificate authority of one's own, the build must know it as the machine does.
        options += ["--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro"]
        options += ["--build-arg", f"PIP_CERT={CERTIFICATES / 'ca-certificates.crt'}"]
    options += ["--tag", _local_name(part, source), "--file", str(source / part / "Dockerfile")]
    buildah("bud", *options, str(source))


def _load(part: str, source: Path) -> str:
    image = stored_image(_local_name(part, source))
    name = f"kvtide/{part}:dev-{image.digest.removeprefix('sha256:')[:12]}"
    if _full_name(name) not in containerd.image_names():
        present = containerd.blob_digests()
        containerd.import_image(lambda stream: write_archive(stream, image, _full_name(name), present))
    return name


def _remember(part: str, name: str) -> None:
    """Write down what is loaded, and remove from the node what is old and runs nowhere."""
    every = loaded()
    tags = [tag for tag in every.get(part, []) if tag != name] + [name]
    used = containerd.images_in_use()
    old = [tag for tag in tags[:-KEPT_TAGS] if _full_name(tag) not in used]
    every[part] = [tag for tag in tags if tag not in old]
    LOADED.write_text(json.dumps(every))
    there = containerd.image_names()
    containerd.remove_images([_full_name(tag) for tag in old if _full_name(tag) in there])


def _base_image() -> str:
    """The name of the base image; it is made on first use, and for each list of packages."""
    recipe = " ".join((BASE_SUITE, *BASE_PACKAGES))
    name = f"localhost/kvtide-base:{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    if not has_image(name):
        with step(f"making the base image: Debian {BASE_SUITE} with Python"), tempfile.TemporaryDirectory() as folder:
            files = Path(folder) / "base.tar"
            _debootstrap(files)
            container = buildah("from", "scratch").strip()
            buildah("add", container, str(files), "/")
            buildah("config", "--env", f"PATH={BASE_PATH}", "--cmd", "python3", container)
            buildah("commit", "--format", "oci", "--rm", container, name)
    return name


def _debootstrap(files: Path) -> None:
    command = ["mmdebstrap", "--variant=minbase", f"--include={','.join(BASE_PACKAGES)}", BASE_SUITE, str(files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"`{' '.join(command)}` failed:\n{done.stderr.strip()}")


def _full_name(name: str) -> str:
    return f"docker.io/{name}"


def _local_name(part: str, source: Path) -> str:
    """A name for each checkout's folder name, so that the layers of neither are pruned with the other's builds."""
    tag = "latest" if source == REPOSITORY else re.sub(r"[^a-z0-9._-]", "-", source.name.lower()).lstrip("-.")
    return f"localhost/kvtide/{part}:{tag}"
