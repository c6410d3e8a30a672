"""
A worker whose KV cache holds, for each slot, what was written there: to be driven by vLLM's own scheduler.

It keeps requests as vLLM's runner does, and refuses to compute a token whose context is not there, belongs
to somebody else, or is approximate where the request may not read that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from sternpost_engine.operations import ROW_MARK, Load, Operations
from sternpost_fakes.obedient_worker import ObedientWorker
from sternpost_fakes.vllm_modules import import_object

Tag = tuple[Any, ...]
"""What approximate KV rests on: a stored tail, and how it was read."""


def next_token(tokens: Sequence[int]) -> int:
    """Return the token that the model says after `tokens`."""
    return 5000 + crc32(repr(list(tokens)).encode()) % 1000


@dataclass(frozen=True, slots=True)
class Slot:
    """What one slot of the KV cache holds; `tag` is None for exact KV."""

    position: int
    token: int
    owner: str
    tag: Tag | None = None


GARBAGE = Slot(-1, -1, "nobody")
"""What a failed copy leaves."""


@dataclass(slots=True)
class HeldRequest:
    """A request as the runner keeps it."""

    tokens: list[int]
    prompt_tokens: int
    blocks: list[int]
    computed: int


@dataclass(slots=True)
class SymbolicWorker:
    """
    Executes what the scheduler's outputs say.

    `tag_of` names what a request's load rests on, `owner_of` whose the request is, and `may_read` says
    whether a request may attend to KV with that tag. `fails` says whether a load fails.
    """

    block_tokens: int
    tag_of: Callable[[Load], Tag]
    owner_of: Callable[[str], str]
    may_read: Callable[[str, Tag], bool]
    fails: Callable[[Load], bool]
    store: ObedientWorker = field(default_factory=ObedientWorker)
    cache: dict[tuple[int, int], Slot] = field(default_factory=dict)
    requests: dict[str, HeldRequest] = field(default_factory=dict)
    computed: Counter[str] = field(default_factory=Counter)
    poisoned: set[str] = field(default_factory=set)
    scheduled_before: set[str] = field(default_factory=set)

    def execute(self, output: Any) -> Any:
        """Carry out one step and return what vLLM's runner would."""
        for request_id in output.finished_req_ids:
            self.requests.pop(request_id, None)
        self._take_new(output.scheduled_new_reqs)
        self._take_cached(output.scheduled_cached_reqs)
        operations: Operations = output.kv_connector_metadata.operations
        outcome = self.store.step(operations)
        failed = {load.request_id for load in operations.loads if self._load(load)}
        sampled = self._forward(output.num_scheduled_tokens)
        self.scheduled_before = set(output.num_scheduled_tokens)
        return self._answer(sampled, outcome, failed)

    # -- requests ---------------------------------------------------------------------------------------

    def _take_new(self, new_requests: Sequence[Any]) -> None:
        for new in new_requests:
            assert new.req_id not in self.requests, "a new request is new"
            tokens = list(new.prompt_token_ids)
            self.requests[new.req_id] = HeldRequest(
                tokens, len(tokens), list(new.block_ids[0]), new.num_computed_tokens
            )
            self.poisoned.discard(new.req_id)

    def _take_cached(self, cached: Any) -> None:
        for number, request_id in enumerate(cached.req_ids):
            held = self.requests[request_id]
            held.computed = cached.num_computed_tokens[number]
            blocks = cached.new_block_ids[number]
            if request_id in cached.resumed_req_ids:
                held.blocks = list(blocks[0])
                self.poisoned.discard(request_id)
            elif blocks is not None:
                held.blocks.extend(blocks[0])
            outputs = cached.num_output_tokens[number]
            if request_id not in self.scheduled_before and outputs:
                held.tokens[held.prompt_tokens :] = cached.all_token_ids[request_id][held.prompt_tokens :]
            del held.tokens[held.prompt_tokens + outputs :]

    # -- a step -----------------------------------------------------------------------------------------

    def _load(self, load: Load) -> bool:
        """Write a stored tail's run; returns whether that failed."""
        span, failed = load.span, self.fails(load)
        tokens, owner = self.store.tails[load.entry].tokens, self.owner_of(load.request_id)
        for number in range(span.count):
            position = span.position + number
            slot = Slot(position, tokens[span.offset + number], owner, self.tag_of(load))
            self.cache[self._slot(span.blocks, position)] = GARBAGE if failed else slot
        if failed:
            self.poisoned.add(load.request_id)
        return failed

    def _forward(self, scheduled: Mapping[str, int]) -> dict[str, list[int]]:
        # Rows see what the step's other rows write before them in the prompt: each layer writes the keys of
        # the whole batch before it attends.
        ordered = sorted(scheduled, key=lambda request_id: self.requests[request_id].computed)
        return {request_id: self._row(request_id, scheduled[request_id]) for request_id in ordered}

    def _row(self, row_id: str, count: int) -> list[int]:
        request_id = row_id.partition(ROW_MARK)[0]
        held, owner = self.requests[row_id], self.owner_of(request_id)
        end = held.computed + count
        assert end <= len(held.tokens), "what is computed is known"
        tag = self._context(request_id, held)
        for position in range(held.computed, end):
            slot = GARBAGE if tag is GARBAGE else Slot(position, held.tokens[position], owner, tag)
            self.cache[self._slot(held.blocks, position)] = slot
        self.computed[request_id] += count
        held.computed = end
        if end < len(held.tokens):
            return []
        assert row_id == request_id, "a row that rides along is never sampled"
        token = -1 if tag is GARBAGE else next_token(held.tokens)
        held.tokens.append(token)
        return [token]

    def _context(self, request_id: str, held: HeldRequest) -> Any:
        """Check what a row attends to, and return the tag of what it computes; None when that is exact."""
        tags: set[Tag] = set()
        for position in range(held.computed):
            slot = self.cache.get(self._slot(held.blocks, position), GARBAGE)
            if request_id in self.poisoned and slot == GARBAGE:
                return GARBAGE
            expected = (position, held.tokens[position], self.owner_of(request_id))
            assert expected == (slot.position, slot.token, slot.owner), f"{request_id} reads {slot}"
            if slot.tag is not None:
                tags.add(slot.tag)
        assert len(tags) <= 1, f"{request_id} reads a mix: {tags}"
        for tag in tags:
            assert self.may_read(request_id, tag), f"{request_id} may not read {tag}"
            return tag
        return None

    def _slot(self, blocks: Sequence[int], position: int) -> tuple[int, int]:
        return blocks[position // self.block_tokens], position % self.block_tokens

    def _answer(self, sampled: Mapping[str, list[int]], outcome: Any, failed: set[str]) -> Any:
        meta = import_object("sternpost_engine.connector:OutcomeMetadata")(
            dict.fromkeys(outcome.completed, 1), set(outcome.failed), failed
        )
        return import_object("vllm.v1.outputs:ModelRunnerOutput")(
            req_ids=list(sampled),
            req_id_to_index={request_id: number for number, request_id in enumerate(sampled)},
            sampled_token_ids=list(sampled.values()),
            kv_connector_output=import_object("vllm.v1.outputs:KVConnectorOutput")(
                kv_connector_worker_meta=meta
            ),
        )
