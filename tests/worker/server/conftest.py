"""One server with real weights for most tests: it takes seconds to start."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from devcluster.model import smollm2_gguf
from kvtide_worker.text.tokenizer import Tokenizer
from tests.worker.models.tiny import save_tiny_llama
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


def serve_tiny(
    smollm2: Path, folder: Path, *, max_context: int, options: Sequence[str] = EXACT, **changes: Any
) -> Server:
    """Random weights that take a millisecond a step, SmolLM2's tokenizer, and a chat template that knows tools."""
    own = {"vocab_size": 49152, "max_position_embeddings": 2048, "initializer_range": 0.02, "bos_token_id": 1}
    save_tiny_llama(folder, **{**own, **changes})
    Tokenizer.load(smollm2).backend.save(str(folder / "tokenizer.json"))
    special = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    template = str(Path(__file__).with_name("chatml_tools.jinja"))
    sizes = ("--memory", "1500Mi", "--max-context", str(max_context), "--block-size", "16", "--max-batch", "16")
    return Server(*sizes, *options, "--chat-template", template, model=folder, log=folder / "log")


@pytest.fixture(scope="session")
def tiny_server(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`serve_tiny`, for tests in which only the form of an answer counts."""
    with serve_tiny(smollm2, tmp_path_factory.mktemp("tiny-server"), max_context=2048) as started:
        yield started.ready()
