"""A picture of a web page, taken with headless Chromium."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from devcluster import packages

WIDTH = 1400
# How long the page's own clock runs before the picture is taken; the browser hurries through it.
PAGE_TIME_MS = 15_000
TIMEOUT_S = 90


def screenshot(url: str, file: Path, height: int = 1000) -> None:
    """Save what the page at a URL shows as a PNG file, `height` pixels of it.

    Raises RuntimeError where there is no picture in the end.
    """
    packages.install(packages.BROWSER)
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as profile:
        command = [
            "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
            f"--user-data-dir={profile}",
            f"--window-size={WIDTH},{height}",
            f"--virtual-time-budget={PAGE_TIME_MS}",
            f"--screenshot={file.absolute()}",
            url,
        ]
        file.unlink(missing_ok=True)
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    if not file.exists():
        raise RuntimeError(f"chromium made no picture of {url}:\n{done.stderr.strip()[-2000:]}")
