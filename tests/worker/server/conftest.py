"""One server with real weights for most tests: it takes seconds to start."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.model import smollm2_gguf
from tests.worker.server.harness import Server

CONTEXT = 2048

# float32, so that a greedy answer is the same whatever else is in the batch; one thread, so that tests beside this one
# on the same cores do not stall its barriers.
EXACT = ("--dtype", "float32", "--threads", "1")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct as a GGUF file."""
    return smollm2_gguf()


@pytest.fixture(scope="session")
def server(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that the tests share and leave as they found it."""
    log = tmp_path_factory.mktemp("server") / "log"
    options = ("--memory", "1500Mi", "--max-context", str(CONTEXT), "--block-size", "16", *EXACT)
    with Server(*options, model=smollm2, log=log) as started:
        yield started.ready()
