"""The chart, rendered by the real Helm: the one on PATH, else the one that the devcluster is built with."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster import binaries

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "kvtide"
NAMESPACE = "kvtide-system"
Manifest = dict[str, Any]
Render = Callable[..., list[Manifest]]


class HelmFailed(Exception):
    """Helm ended with an exit status other than 0; the message is what it printed."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keeps what needs Helm out of the fast tests: where it is not there yet, it is built with the devcluster."""
    for item in items:
        if "helm" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def helm() -> Callable[..., str]:
    """Runs Helm in the repository's root and gives its standard output. Raises HelmFailed with what it said."""
    binary = shutil.which("helm")
    if not binary:
        binaries.build()
        binary = binaries.binary("helm")

    def run(*args: str) -> str:
        done = subprocess.run([binary, *args], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise HelmFailed(done.stdout + done.stderr)
        return done.stdout

    return run


@pytest.fixture(scope="session")
def render(helm: Callable[..., str]) -> Render:
    """The objects of `helm template kvtide charts/kvtide`, each argument a KEY=VALUE for --set."""

    def objects(*settings: str) -> list[Manifest]:
        flags = [word for setting in settings for word in ("--set", setting)]
        text = helm("template", "kvtide", str(CHART), "--namespace", NAMESPACE, *flags)
        return [document for document in yaml.safe_load_all(text) if document]

    return objects


def of_kind(objects: list[Manifest], kind: str) -> list[Manifest]:
    """Those of one kind, in the order of rendering."""
    return [found for found in objects if found["kind"] == kind]
