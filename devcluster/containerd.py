"""What containerd holds: images, which stay in the cache, and containers, which do not outlive the cluster."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from devcluster.paths import CONTAINERD_SOCKET

NAMESPACE = "k8s.io"


def ctr(*arguments: str) -> str:
    """Run containerd's own client. Raises RuntimeError with what it said."""
    done = subprocess.run(_command(*arguments), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"`ctr {' '.join(arguments)}` failed: {done.stderr.strip()}")
    return done.stdout


def image_names() -> list[str]:
    return ctr("images", "list", "--quiet").split()


def images_in_use() -> set[str]:
    """The names of the images that containers run from; a container is started again only while its image is there."""
    lines = ctr("containers", "list").splitlines()[1:]
    return {line.split()[1] for line in lines}


def blob_digests() -> set[str]:
    """The digests of the blobs that containerd has: it takes an image whose archive leaves these out."""
    return set(ctr("content", "list", "--quiet").split())


def import_image(write: Callable[[IO[bytes]], None]) -> None:
    """Import an image archive that `write` writes into a pipe: it is never a file of its own."""
    client = subprocess.Popen(_command("images", "import", "-"), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert client.stdin
    # A client that ends early breaks the pipe; its exit status says so below.
    with suppress(BrokenPipeError):
        write(client.stdin)
    output, _ = client.communicate()
    if client.returncode != 0:
        raise RuntimeError(f"`ctr images import` failed with status {client.returncode}: {output.decode().strip()}")


def remove_images(names: list[str]) -> None:
    """Forget images; containerd frees by itself what no other image or container needs."""
    if names:
        ctr("images", "remove", *names)


def remove_containers() -> None:
    """Kill and remove every container and pod sandbox, without asking them."""
    for container in ctr("containers", "list", "--quiet").split():
        subprocess.run(_command("tasks", "delete", "--force", container), capture_output=True, check=False)
        ctr("containers", "delete", container)


def kill_shims() -> None:
    """Kill the shims that are left: processes which were told, as an argument of their own, our socket's path."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if b"-address" in arguments and os.fsencode(CONTAINERD_SOCKET) in arguments:
            os.kill(int(folder.name), signal.SIGKILL)


def _command(*arguments: str) -> list[str]:
    return ["ctr", "--address", str(CONTAINERD_SOCKET), "--namespace", NAMESPACE, *arguments]
