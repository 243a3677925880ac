"""What runs in the next step. Decides from counts alone: no tensors, no clock."""

from __future__ import annotations

import logging
from bisect import bisect_left, insort
from collections.abc import Sequence
from operator import attrgetter

from kvtide_worker.engine.block_manager import BlockManager
from kvtide_worker.engine.growth import OutputLength, growth, shortage
from kvtide_worker.engine.request import Request
from kvtide_worker.engine.shares import Chunk, cut_aligned, share_budget

# A request that lost its blocks so often keeps them from then on, while others have some to lose.
MAX_PREEMPTIONS = 3

# How many requests behind one that is blocked for want of memory are looked at, and how often it may be passed.
LOOK_AHEAD = 8
MAX_PASSED = 16

# How many steps in a row those that decode sit out at most, and how many first tokens each of these steps has at least.
# The pause is that of one step with five times the tokens, in a fifth of its memory.
MAX_SAT_OUT = 4
WORTH_SITTING_OUT = 2

_PLACE, _RANK = attrgetter("place"), attrgetter("rank")

logger = logging.getLogger(__name__)


class Scheduler:
    """Two queues and one budget of tokens per step.

        waiting ──admit──► running ──► finished
           ▲                  │
           └── preempt: keeps its generated tokens, recomputes keys and values

    Both are in the order of priority, and of one priority in that of arrival; who has run waits before those that have
    not. Running requests decode first, in order; what is left of the budget goes to the prompts nearest to their end,
    so that a short one does not stand behind a long one. Where a step is too small for both, and WORTH_SITTING_OUT
    prompts would end in one of its own, those that decode sit it out, MAX_SAT_OUT times in a row: a burst of short
    prompts is behind them in fewer and longer pauses, while long ones delay them by a step at a time.

    Who needs a block and finds none takes it from the last one that runs: the newest of the lowest priority. The first
    one never loses its blocks, and each fits the pool alone (`served_kv`), so that every request ends. One that was
    preempted MAX_PREEMPTIONS times only loses them where nobody else has any to lose. A request may also take the place
    of one of a lower priority, whether blocks are short or places in the batch.

    One that is blocked for want of blocks is passed by some of those behind it that fit, MAX_PASSED times at most: then
    all wait until it is let in.

    A step has at most as many rows of logits as sequences may run: so much memory was measured. A request whose prompt
    gets log probabilities has a row for each token, and its chunks are cut to the rows that the others leave.

    A request is let in with all blocks that its tokens so far will ever hold between two steps, those that are found in
    the prefix cache included. What windowed tables hold beyond that while a step runs is kept free at admission; where
    decodes have grown into it, a chunk is cut.

    Requests with one prompt follow their leader: they wait until that one has computed it, then share its blocks.
    """

    def __init__(self, blocks: BlockManager, *, max_batch_limit: int, reserved_tokens: int = 0) -> None:
        """reserved_tokens: what each request is given blocks for when it is let in, however short it is: the longest
        sequence is how engines without paging reserve, and what paging is compared with.

        Raises ValueError where a step of the layout's tokens would not give each running request one."""
        if blocks.layout.step_tokens < max_batch_limit:
            raise ValueError(
                f"a step of {blocks.layout.step_tokens} tokens cannot run {max_batch_limit} sequences; "
                f"it needs a budget of {max_batch_limit} or a lower batch limit"
            )
        self._reserved_tokens = reserved_tokens
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.max_batch_limit = max_batch_limit
        self.batch_limit = max_batch_limit
        self.preemptions = 0
        self.recomputed_tokens = 0
        self.prefix_queries = self.prefix_hits = 0
        self._following: set[Request] = set()
        self._lengths = OutputLength()
        self._blocks = blocks
        self._sat_out = 0

    @property
    def num_waiting(self) -> int:
        """Requests that do not run, those that wait for another one's prompt included."""
        return len(self.waiting) + len(self._following)

    @property
    def queued_prompt_tokens(self) -> int:
        """Tokens that prefill has yet to compute, of waiting requests and of running ones."""
        prefilling = (pending for request in self.running if (pending := request.pending_tokens) > 1)
        return sum(request.num_tokens for request in self.waiting) + sum(prefilling)

    @property
    def expected_output_tokens(self) -> int:
        """Tokens that all requests together may still generate."""
        queues = (self.running, self.waiting, self._following)
        return sum(request.expected_output_tokens for queue in queues for request in queue)

    def add(self, request: Request, leader: Request | None = None) -> None:
        """Queue a request that can end (`output_tokens`).

        leader: a queued one with the same prompt; the request waits for it, unless it has computed that already
        """
        if leader is None or leader.output_token_ids:
            insort(self.waiting, request, key=_PLACE)
            return
        request.leader = leader.leader or leader
        request.leader.followers.append(request)
        self._following.add(request)

    def remove(self, request: Request, *, kept: bool = True) -> None:
        """Forget a request, finished or not, and free its blocks; who follows it no longer waits for it.

        kept: False where what its blocks hold is not to be found again
        """
        if request.leader is not None:
            request.leader.followers.remove(request)
            self._following.remove(request)
            request.leader = None
        elif request.blocks.tables:
            self.running.remove(request)
            self._blocks.release(request.blocks, kept=kept)
            self._lengths.ended(len(request.output_token_ids))
        else:
            del self.waiting[bisect_left(self.waiting, request.place, key=_PLACE)]
        self._succeed(request)

    def fork(self, leader: Request) -> list[Request]:
        """Those that follow a request that has just computed its prompt, and now run with what that one has: as many as
        there are places and blocks for. The others are queued.
        """
        if not leader.followers:
            return []
        children = []
        kept = self._kept_blocks(self.running)
        for request in leader.followers:
            grown = self._growth(leader)
            if len(self.running) < self.batch_limit and self._blocks.fork(leader.blocks, request.blocks, kept + grown):
                kept += grown + len(request.blocks.tables)
                request.cached_tokens = len(request.prompt_token_ids)
                request.prompt_logprobs = list(leader.prompt_logprobs)
                insort(self.running, request, key=_RANK)
                children.append(request)
            else:
                insort(self.waiting, request, key=_PLACE)
            request.leader = None
        self._following.difference_update(leader.followers)
        leader.followers = []
        return children

    def set_batch_limit(self, batch_limit: int) -> None:
        """The most requests that a step may run, from the next one on; kept between 1 and max_batch_limit."""
        self.batch_limit = min(max(batch_limit, 1), self.max_batch_limit)

    def set_max_batch_limit(self, max_batch_limit: int) -> None:
        """Another most: a limit that was as high as it could be is again, another one stays if it may."""
        highest = self.batch_limit == self.max_batch_limit
        self.max_batch_limit = max_batch_limit
        self.set_batch_limit(max_batch_limit if highest else self.batch_limit)

    def add_recent(self) -> None:
        """Give those that run the blocks of a layout that keeps recent tokens, where they have none yet; the newest
        lose their blocks where there are too few for all."""
        for request in list(self.running):
            while request.blocks.tables and not self._blocks.add_recent(request.blocks):
                self._preempt()

    def schedule(self) -> list[Chunk]:
        """The next step: decodes, then prefill chunks. Empty only where no request is left."""
        while len(self.running) > self.batch_limit:
            self._put_back(self.running[-1])
        preemptions_before = self.preemptions
        decodes = self._decodes()
        # Blocks are short in a step that preempts: an admission would only be preempted in turn.
        if self.waiting and self.preemptions == preemptions_before:
            self._admit(decodes)
        prefilling = [request for request in self.running if request not in decodes]
        if decodes and self._sat_out < MAX_SAT_OUT:
            prompts = self._first_tokens(prefilling, len(decodes))
            if prompts:
                self._sat_out += 1
                return prompts
        self._sat_out = 0
        budget = self._blocks.layout.step_tokens - len(decodes)
        return self._prefills(share_budget(prefilling, budget, self._blocks.aligned_tokens), decodes)

    def _first_tokens(self, prefilling: list[Request], decodes: int) -> list[Chunk]:
        """A step of prompts alone, of which enough end in it; none where prompts and decodes fit one step together."""
        budget = self._blocks.layout.step_tokens
        if sum(request.pending_tokens for request in prefilling) + decodes <= budget:
            return []
        shares = share_budget(prefilling, budget, self._blocks.aligned_tokens)
        ends = sum(share.new_tokens == share.request.pending_tokens for share in shares)
        return self._prefills(shares, {}) if ends >= WORTH_SITTING_OUT else []

    def _decodes(self) -> dict[Request, Chunk]:
        chunks: dict[Request, Chunk] = {}
        for request in list(self.running):
            if request.pending_tokens != 1 or not request.blocks.tables:
                continue  # in prefill, or preempted for one before it
            while not self._blocks.reserve(request.blocks, request.num_tokens):
                victim = self._preempt()
                chunks.pop(victim, None)
                if victim is request:
                    break
            else:
                chunks[request] = Chunk(request, 1)
        return chunks

    def _prefills(self, shares: list[Chunk], decodes: dict[Request, Chunk]) -> list[Chunk]:
        """Decodes and prefill chunks together, each of these cut to what blocks there are for, in order."""
        chunks = dict(decodes)
        for share in self._within_rows(shares, len(decodes)):
            if not share.request.blocks.tables:
                continue  # preempted for the first one
            new_tokens = self._cut(share)
            while not new_tokens and share.request is self.running[0]:
                chunks.pop(self._preempt(), None)
                new_tokens = self._cut(share)
            if new_tokens:
                chunks[share.request] = Chunk(share.request, new_tokens)
        return list(chunks.values())

    def _within_rows(self, shares: list[Chunk], decodes: int) -> list[Chunk]:
        """The shares with those cut that have a row of logits for each token."""
        spare = self.max_batch_limit - decodes - len(shares)
        cut = []
        for share in shares:
            new_tokens = min(share.new_tokens, 1 + spare) if share.request.scores_prompt else share.new_tokens
            spare -= new_tokens - 1 if share.request.scores_prompt else 0
            cut.append(Chunk(share.request, new_tokens))
        return cut

    def _cut(self, share: Chunk) -> int:
        """How many tokens of the share have blocks, which are reserved: fewer by whole pieces, as shares are cut, then
        by whole blocks, down to none."""
        request, past, size = share.request, share.request.blocks.num_tokens, self._blocks.layout.block_size
        new_tokens = share.new_tokens
        while new_tokens and not self._blocks.reserve(request.blocks, past + new_tokens):
            aligned = cut_aligned(request, new_tokens - 1, self._blocks.aligned_tokens)
            new_tokens = aligned or max(0, (past + new_tokens - 1) // size * size - past)
        return new_tokens

    def _preempt(self, outranked_by: Request | None = None) -> Request:
        assert len(self.running) > 1 or outranked_by, "a request that does not fit the pool alone was let in"
        victim = self._victim(outranked_by)
        assert victim is not None, "there is always one behind the first"
        lost, before = victim.blocks.num_tokens, self._usage()
        victim.preemptions += 1
        self.preemptions += 1
        self._put_back(victim)
        logger.warning(
            "request %s was preempted: %d tokens to compute again, less those found cached; live KV blocks %.1f %% "
            "before, %.1f %% after; %d of its preemptions, %d of all",
            *(victim.request_id, lost, before, self._usage(), victim.preemptions, self.preemptions),
        )
        return victim

    def _victim(self, outranked_by: Request | None) -> Request | None:
        """The last that may lose its blocks: not the first; for one that waits, only those that it outranks."""
        if outranked_by is None:
            behind = self.running[1:]
            return next((one for one in reversed(behind) if one.preemptions < MAX_PREEMPTIONS), behind[-1])
        return next(
            (
                one
                for one in reversed(self.running)
                if one.priority > outranked_by.priority and one.preemptions < MAX_PREEMPTIONS
            ),
            None,
        )

    def _put_back(self, request: Request) -> None:
        del self.running[bisect_left(self.running, request.rank, key=_RANK)]
        request.lost_tokens = request.blocks.num_tokens
        self._blocks.release(request.blocks)
        request.put_back = True
        insort(self.waiting, request, key=_PLACE)

    def _admit(self, decodes: dict[Request, Chunk]) -> None:
        kept = self._kept_blocks(self.running)
        passed: list[Request] = []
        while len(passed) < min(len(self.waiting), 1 + LOOK_AHEAD):
            request = self.waiting[len(passed)]
            full = len(self.running) >= self.batch_limit
            if not full and self._let_in(request, kept):
                del self.waiting[len(passed)]
                kept += self._growth(request)
                for blocked in passed:
                    blocked.passed += 1
            elif self._outranks(request):
                decodes.pop(self._preempt(outranked_by=request), None)
                kept = self._kept_blocks(self.running)
            elif full:
                return
            else:
                passed.append(request)
            if any(blocked.passed >= MAX_PASSED for blocked in passed):
                return

    def _let_in(self, request: Request, kept_blocks: int) -> bool:
        # Log probabilities of a prompt need all of it computed.
        reuse = not request.scores_prompt
        num_tokens = max(request.num_tokens, self._reserved_tokens)
        if not self._blocks.admit(request.blocks, num_tokens, kept_blocks, reuse=reuse):
            return False
        if request.cached_tokens is None:
            request.cached_tokens = request.blocks.num_tokens
            if reuse and request.blocks.chain is not None:
                self.prefix_queries += len(request.prompt_token_ids)
                self.prefix_hits += request.cached_tokens
        else:
            self.recomputed_tokens += max(0, request.lost_tokens - request.blocks.num_tokens)
        request.passed = 0
        insort(self.running, request, key=_RANK)
        return True

    def _outranks(self, request: Request) -> bool:
        """Whether those of lower priorities that may lose their blocks have what this one lacks."""
        if self._victim(outranked_by=request) is None:
            return False
        lower = {one for one in self.running if one.priority > request.priority and one.preemptions < MAX_PREEMPTIONS}
        others = [one for one in self.running if one not in lower]
        there = self._blocks.available_blocks + sum(one.blocks.num_blocks for one in lower)
        return self._blocks.layout.sequence_blocks(request.num_tokens) + self._kept_blocks(others) <= there

    def _kept_blocks(self, running: Sequence[Request]) -> int:
        """Beside what a step takes and gives back, room for running ones to grow until one of them ends."""
        layout = self._blocks.layout
        return layout.step_blocks + shortage(running, layout, self._steps_to_an_end())

    def _growth(self, request: Request) -> int:
        return growth(request, self._blocks.layout, self._steps_to_an_end())

    def _steps_to_an_end(self) -> int:
        """As many steps as a block has tokens at most: nobody grows by more than one in them."""
        return self._lengths.steps_to_an_end(len(self.running), self._blocks.layout.block_size)

    def _succeed(self, leader: Request) -> None:
        """The first of those that follow a request that is gone computes the prompt; the others follow that one."""
        if not leader.followers:
            return
        heir, *others = leader.followers
        leader.followers = []
        self._following.remove(heir)
        heir.leader, heir.followers = None, others
        for request in others:
            request.leader = heir
        insort(self.waiting, heir, key=_PLACE)

    def _usage(self) -> float:
        return 100 * self._blocks.live_blocks / self._blocks.num_blocks
