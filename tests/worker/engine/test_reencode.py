"""The pool changes its precision between two steps, and requests go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvtide_worker.engine import kv_formats
from kvtide_worker.engine.cannot_reencode import CannotReencode
from kvtide_worker.engine.engine import Engine
from kvtide_worker.engine.messages import AddRequest, FinishReason, ReencodeError, TokenOutput
from tests.worker.engine.harness import generate, greedy, load, run
from tests.worker.engine.test_precisions import MOST_REGRET, NEW_TOKENS, PROMPTS, Tiny
from tests.worker.models.tiny import save_tiny_gemma3, save_tiny_llama


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Two layers that see everything, or seven of which all but one see the last 24 tokens: six block tables."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "llama":
        return Tiny(folder, save_tiny_llama(folder, head_dim=64, initializer_range=0.15))
    return Tiny(folder, save_tiny_gemma3(folder, head_dim=64, query_pre_attn_scalar=64, tie_word_embeddings=False))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    folder = tmp_path_factory.mktemp("llama")
    return Tiny(folder, save_tiny_llama(folder, head_dim=64, initializer_range=0.15))


def bf16(tiny: Tiny, **options: Any) -> Engine:
    return load(tiny.folder, **{"dtype": "auto", "num_blocks": 300, **options})


def add(engine: Engine, prompts: list[list[int]] = PROMPTS, **options: Any) -> None:
    for index, prompt in enumerate(prompts):
        engine.add(AddRequest(str(index), prompt, greedy(NEW_TOKENS), **options))


def tokens_of(outputs: list[TokenOutput], count: int = len(PROMPTS)) -> list[list[int]]:
    tokens: list[list[int]] = [[] for _ in range(count)]
    for output in outputs:
        assert output.error is None
        tokens[int(output.request_id)] += output.token_ids
    return tokens


def conserved(engine: Engine) -> None:
    state = engine.state()
    assert state.live_blocks + state.cached_blocks + state.free_blocks == state.num_blocks
    assert state.num_blocks * engine._pool.layout.block_bytes <= engine._pool.nbytes


def poison(engine: Engine) -> None:
    """What nobody may read is NaN, in every format."""
    used = {
        block
        for of_table in engine._blocks.used_blocks(one.blocks for one in engine._scheduler.running)
        for blocks in of_table
        for block in blocks
    }
    free = [block for block in range(engine._pool.num_blocks) if block not in used]
    for arena in engine._pool.arenas():
        arena[free] = 255


CHAINS = [["INT8"], ["K8V4"], ["INT4"], ["INT8", "K8V4", "INT4"]]


@pytest.mark.parametrize("chain", CHAINS, ids="-".join)
def test_answers_go_on_over_a_reencoding(tiny: Tiny, chain: list[str]) -> None:
    """Each token is about as likely as the likeliest one, whatever lies in blocks that nobody has."""
    engine = bf16(tiny)
    before = engine.state()
    assert before.kv.reencodable == ["INT8", "K8V4", "INT4"]
    add(engine)
    outputs, ring = [], 0
    for precision in chain:
        for _ in range(8):
            outputs += engine.step()
        live, cached = engine.state().live_blocks, engine.state().cached_blocks
        held = [list(table.blocks) for one in engine._scheduler.running for table in one.blocks.tables]
        poison(engine)
        engine.reencode(precision)
        poison(engine)
        state = engine.state()
        assert state.kv.precision == precision
        assert {(key, value) for _, key, value in state.kv.layers} == {
            {"INT8": ("INT8", "INT8"), "K8V4": ("INT8", "INT4"), "INT4": ("INT4", "INT4")}[precision]
        }
        assert held == [list(table.blocks) for one in engine._scheduler.running for table in one.blocks.tables]
        # Recent tokens get blocks when a format keeps them first, 8 in each table.
        begins = precision != "INT8" and not ring
        ring = 8 * before.block_tables * state.running if begins else 0
        assert (state.live_blocks, state.cached_blocks) == (live + ring, cached)
        conserved(engine)
    after = engine.state()
    # Bytes of a head's key and value of 64: 256 of BF16, 132 of INT8, 102 of K8V4, 72 of INT4.
    factor = 256 / {"INT8": 132, "K8V4": 102, "INT4": 72}[chain[-1]]
    assert before.num_blocks * factor - 2 * before.block_tables <= after.num_blocks <= before.num_blocks * factor
    assert after.capacity_tokens > 1.9 * before.capacity_tokens
    outputs += run(engine)
    for prompt, output in zip(PROMPTS, tokens_of(outputs), strict=True):
        assert len(output) == NEW_TOKENS
        assert tiny.regret(prompt, output) < MOST_REGRET[chain[-1]]
    assert (engine.state().live_blocks, engine.state().live_tokens, engine.state().preemptions) == (0, 0, 0)


def test_int8_says_nearly_what_bf16_says(llama: Tiny) -> None:
    """About as nearly as INT8 from the beginning: rounding decides between tokens that are about as likely, and which
    way it falls is the kernels' business."""
    engine = bf16(llama)
    add(engine)
    outputs = [output for _ in range(10) for output in engine.step()]
    engine.reencode("INT8")
    got = tokens_of(outputs + run(engine))
    wanted = generate(bf16(llama), PROMPTS, NEW_TOKENS)
    own = generate(bf16(llama, precision="INT8"), PROMPTS, NEW_TOKENS)

    def alike(answers: list[list[int]]) -> int:
        pairs = zip(answers, wanted, strict=True)
        return sum(a == b for answer, exact in pairs for a, b in zip(answer, exact, strict=True))

    assert alike(got) >= max(0.9 * alike(own), 0.8 * NEW_TOKENS * len(PROMPTS))
    assert [answer[:10] for answer in got] == [answer[:10] for answer in wanted]


def test_what_was_cached_is_found_and_is_what_it_was(tiny: Tiny) -> None:
    """A prompt's beginning, stored in BF16 and re-encoded while nobody has it, then shared by two."""
    engine, prompt = bf16(tiny), list(range(20, 160))
    generate(engine, [prompt], 3)
    cached = engine.state().cached_blocks
    assert cached > 0
    engine.reencode("INT8")
    assert (engine.state().cached_blocks, engine.state().live_blocks) == (cached, 0)
    poison(engine)
    add(engine, [prompt])
    outputs = run(engine)
    assert outputs[0].cached_tokens == 128
    assert tiny.regret(prompt, tokens_of(outputs, 1)[0]) < MOST_REGRET["INT8"]
    conserved(engine)


def test_choices_that_share_blocks_go_on(tiny: Tiny) -> None:
    """Three of one prompt, re-encoded in the step in which they part: copies are made of what was there before."""
    engine, prompt = bf16(tiny, precision="K8V4", max_context=200), list(range(20, 91))
    for index in range(3):
        leader = "0" if index else None
        engine.add(AddRequest(str(index), prompt, greedy(NEW_TOKENS), same_prompt_as=leader))
    outputs = engine.step()
    poison(engine)
    engine.reencode("INT4")
    poison(engine)
    outputs += run(engine)
    for tokens in tokens_of(outputs, 3):
        assert tiny.regret(prompt, tokens) < MOST_REGRET["INT4"]
    conserved(engine)


def test_a_prompt_in_the_middle_goes_on(tiny: Tiny) -> None:
    engine, prompt = bf16(tiny), [*range(20, 220)]
    engine._blocks.layout = replace(engine._blocks.layout, step_tokens=64)
    engine.add(AddRequest("0", prompt, greedy(20)))
    outputs = engine.step()
    assert engine._scheduler.running[0].pending_tokens > 1
    engine.reencode("INT4")
    outputs += run(engine)
    assert tiny.regret(prompt, tokens_of(outputs, 1)[0]) < MOST_REGRET["INT4"]


def test_the_newest_lose_their_blocks_where_recent_tokens_have_no_room_for_all(llama: Tiny) -> None:
    """INT8 has no blocks of recent tokens, INT4 has 8 for each: of 80 blocks 146 are made, for 16 sequences of 3."""
    engine = bf16(llama, precision="INT8", num_blocks=80, max_context=96, prefix_caching=False)
    prompts = [[index + 1, *range(30, 64)] for index in range(16)]
    add(engine, prompts)
    outputs = [output for _ in range(3) for output in engine.step()]
    assert engine.state().running == 16
    engine.reencode("INT4")
    state = engine.state()
    assert 0 < state.preemptions == 16 - state.running
    conserved(engine)
    answers = tokens_of(outputs + run(engine), 16)
    assert all(len(answer) == NEW_TOKENS for answer in answers)
    assert engine.state().live_blocks == 0


def test_back_to_more_bytes_only_while_nothing_is_live(llama: Tiny) -> None:
    engine = bf16(llama)
    wanted = generate(engine, PROMPTS, NEW_TOKENS)
    before = engine.state()
    engine.reencode("INT4")
    assert (engine.state().kv.reencodable, engine.state().kv.larger) == ([], ["BF16", "INT8", "K8V4"])
    add(engine)
    engine.step()
    with pytest.raises(CannotReencode, match=r"BF16 takes more bytes than INT4, and \d+ blocks are live") as refused:
        engine.reencode("BF16")
    assert refused.value.kind is ReencodeError.NOT_NOW
    assert engine.state().kv.precision == "INT4"
    run(engine)
    engine.reencode("BF16")
    state = engine.state()
    assert (state.kv, state.num_blocks, state.free_blocks) == (before.kv, before.num_blocks, before.num_blocks)
    assert state.max_batch_limit == before.max_batch_limit
    poison(engine)
    assert generate(engine, PROMPTS, NEW_TOKENS) == wanted


@pytest.mark.parametrize(
    ("precision", "says"),
    [
        ("FP8", "kvPrecision FP8: KV is stored as BF16, .* it may become INT8, K8V4, INT4"),
        ("Mixed", "kvPrecision Mixed: KV is stored as BF16"),
        ("int8", "kvPrecision int8: "),
    ],
)
def test_what_it_cannot_become_is_refused_by_name(llama: Tiny, precision: str, says: str) -> None:
    engine = bf16(llama)
    with pytest.raises(CannotReencode, match=says) as refused:
        engine.reencode(precision)
    assert refused.value.kind is ReencodeError.NEVER
    assert engine.state().kv.precision == "BF16"


def test_the_precision_in_force_changes_nothing(llama: Tiny) -> None:
    engine = bf16(llama)
    pool = engine._pool
    engine.reencode("BF16")
    assert engine._pool is pool


def test_an_engine_in_float32_has_no_other(llama: Tiny) -> None:
    engine = load(llama.folder)
    assert engine.state().kv.reencodable == []
    with pytest.raises(CannotReencode, match="it may become nothing else"):
        engine.reencode("INT8")


def test_a_reencoding_that_fails_ends_what_ran_and_nothing_else(llama: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = bf16(llama, batch_limit=2)
    add(engine, PROMPTS[:3])
    engine.step()

    def fails(*_: Any, tick: Callable[[], None], **__: Any) -> None:
        tick()
        engine._pool.storage.fill_(255)
        raise RuntimeError("no memory")

    ticks: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(kv_formats, "reencode", fails)
        with pytest.raises(CannotReencode, match="KV could not be stored as INT8: no memory") as refused:
            engine.reencode("INT8", lambda: ticks.append(1))
    assert (refused.value.kind, ticks) == (ReencodeError.FAILED, [1])
    state = engine.state()
    assert (state.kv.precision, state.live_blocks, state.cached_blocks) == ("BF16", 0, 0)
    outputs = run(engine)
    failed = [output.request_id for output in outputs if output.finish_reason is FinishReason.ERROR]
    assert failed == ["0", "1"]
    waited = [token for output in outputs if output.request_id == "2" for token in output.token_ids]
    assert waited == generate(bf16(llama), PROMPTS[2:3], NEW_TOKENS)[0]
    conserved(engine)


def test_a_smaller_format_runs_as_many_sequences_as_its_plan_says(llama: Tiny) -> None:
    """The planner's own batch limits, of the device that it planned for: 64 at most."""
    engine = bf16(llama, batch_limit=3)
    assert engine.state().max_batch_limit == 3
    engine.set_batch_limit(2)
    engine.reencode("INT8")
    assert (engine.state().batch_limit, engine.state().max_batch_limit) == (2, 64)
    engine.set_batch_limit(64)
    engine.reencode("INT4")
    assert (engine.state().batch_limit, engine.state().max_batch_limit) == (64, 64)
    assert engine.state().memory.activations_bytes == max(engine._meter._peaks.values())
