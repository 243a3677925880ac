"""A reader's logits against transformers', and its block tables."""

from __future__ import annotations

from pathlib import Path

import torch

from kvtide_kernels.reference import ReferenceAttention
from kvtide_sizing.formats import FLOAT32, INT4, LayerFormat, Precision
from kvtide_sizing.memory.kv import kv_layout
from kvtide_worker.quality.attention import Recording
from kvtide_worker.quality.reader import Reader, held_pool, held_tables
from tests.worker.quality.tiny_measured import load_model, random_tokens, save_model


def test_chunks_and_decodes_give_transformers_logits(tmp_path: Path) -> None:
    theirs = save_model(tmp_path)
    measured = load_model(tmp_path)
    config, lengths = measured.model.config, [150, 90]
    formats = [LayerFormat(FLOAT32, FLOAT32)] * config.num_layers
    pool, sequences = held_pool(measured, formats, lengths)
    attention = ReferenceAttention(pool.layout, pool.layers, scale=config.attention_scale)
    reader = Reader(measured.model, attention, sequences, measured.device)
    texts = [random_tokens(length, seed) for seed, length in enumerate(lengths)]
    with torch.inference_mode():
        wanted = [theirs(torch.tensor([text])).logits[0] for text in texts]

    found = reader.read([texts[0][:70], texts[1][:20]])
    torch.testing.assert_close(found, torch.stack([wanted[0][69], wanted[1][19]]), atol=2e-4, rtol=2e-4)
    found = reader.read([texts[0][70:71], texts[1][20:80]])
    torch.testing.assert_close(found, torch.stack([wanted[0][70], wanted[1][79]]), atol=2e-4, rtol=2e-4)
    found = reader.read([texts[0][71:72], ()])
    torch.testing.assert_close(found, wanted[0][71:72], atol=2e-4, rtol=2e-4)


def test_every_block_is_held_once(tmp_path: Path) -> None:
    save_model(tmp_path)
    shape = load_model(tmp_path).shape
    layout = kv_layout(shape, [LayerFormat(INT4, INT4)] * 2, 64, 512)
    sequences, num_blocks = held_tables(layout, [64, 65])
    held = [block for tables in sequences for table in tables for block in [*table.blocks, *table.recent]]
    # One and two blocks of 64 tokens, and of each sequence 32 recent tokens in blocks of 16.
    assert num_blocks == 1 + 2 + 2 * 2
    assert sorted(held) == list(range(num_blocks))


def test_a_replayed_chunk_is_as_one_that_was_read(tmp_path: Path) -> None:
    save_model(tmp_path)
    measured = load_model(tmp_path)
    texts = [random_tokens(70, 1), random_tokens(40, 2)]
    exact = Reader.open(measured, measured.formats(Precision.BF16), [80, 80])
    recording: Recording = {}
    exact.read(texts, record=recording)
    read, replayed = (Reader.open(measured, measured.formats(Precision.INT4), [80, 80]) for _ in range(2))
    read.read(texts)
    replayed.replay(texts, recording)
    for token in (7, 8):
        own, theirs = (reader.read([[token], [token]]) for reader in (replayed, read))
        assert torch.equal(own, theirs)
    # It was stored in INT4, not in BF16.
    assert not torch.equal(exact.read([[7], [7]]), replayed.read([[7], [7]]))
