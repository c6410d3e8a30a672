"""Requests with a fixed tail, as the engine's planner sees them, in counts that are easily added up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sternpost_core.hint import Hint, Operation
from sternpost_engine.buckets import Bucket
from sternpost_engine.calibration import Calibrator
from sternpost_engine.index import SuffixIndex
from sternpost_engine.keys import TailHash, TailIdentity, hash_tail
from sternpost_engine.marking import Marker
from sternpost_engine.operations import Built, Operations, Splice
from sternpost_engine.planner import TailPlanner
from sternpost_engine.rules import Facts, Limits
from sternpost_engine.tracks import Room
from sternpost_fakes.clock import FakeClock

SCAFFOLD: Final = tuple(range(100, 108))
"""The eight tokens that every tail is encoded after."""

TAIL: Final = tuple(range(500, 516))
"""The sixteen tokens of the tail, unless a test says otherwise."""

OTHER_TAIL: Final = tuple(range(600, 616))
"""Another tail of the same length."""

MIDDLE: Final = tuple(range(900, 910))
"""The ten tokens that differ from request to request."""

BLOCK_SIZE: Final = 4
"""Tokens of a KV block."""

IDENTITY: Final = TailIdentity(
    mode="rotate",
    anchor=0,
    scaffold="5ca0",
    salt="tenant",
    epoch=7,
    lora="",
    kind="chat",
    engine="e1",
    correction="none",
)
"""The identity of a tail where a test needs but one."""

WIDE: Final = Room(tokens=1000, rows=100, tokens_max=1000, rows_max=100)
"""Room for whatever a test asks for."""


def transfer_of(hint: Hint) -> dict[str, Any]:
    """Return `kv_transfer_params` as the engine receives them."""
    return {"sternpost": hint.to_mapping()}


def build_facts(request_id: str, tail: Sequence[int] = TAIL, *, salt: str = "", **hint: Any) -> Facts:
    """Return a request that builds `tail`: scaffold and tail, nothing else."""
    values = {"op": Operation.BUILD, "prefix_tokens": len(SCAFFOLD), "tail_tokens": len(tail), "last": 2}
    return Facts(
        request_id=request_id,
        prompt=(*SCAFFOLD, *tail),
        transfer=transfer_of(Hint(**{**values, **hint})),
        salt=salt,
    )


def read_facts(
    request_id: str,
    tail: Sequence[int] = TAIL,
    *,
    middle: Sequence[int] = MIDDLE,
    salt: str = "",
    lora: str = "",
    **hint: Any,
) -> Facts:
    """Return a request that reads `tail` after scaffold and `middle`."""
    values = {"op": Operation.READ, "prefix_tokens": len(SCAFFOLD), "tail_tokens": len(tail), "last": 2}
    return Facts(
        request_id=request_id,
        prompt=(*SCAFFOLD, *middle, *tail),
        transfer=transfer_of(Hint(**{**values, **hint})),
        salt=salt,
        lora=lora,
    )


def make_planner(
    *,
    budget_tokens: int = 1000,
    limits: Limits | None = None,
    hash_function: TailHash = hash_tail,
    supported: bool = True,
    clock: FakeClock | None = None,
    calibrator: Calibrator | None = None,
    marker: Marker | None = None,
    start: str = "",
    index_type: type[SuffixIndex] = SuffixIndex,
) -> TailPlanner:
    """Return a planner whose tokens are one byte each and whose rooms are 8, 16 or 32 tokens."""
    clock = clock or FakeClock()
    index = index_type(
        budget_bytes=budget_tokens,
        bytes_per_token=1,
        clock=clock,
        buckets=[Bucket(tokens, 1 / 3) for tokens in (8, 16, 32)],
    )
    return TailPlanner(
        index,
        limits or Limits(tail_tokens_min=4, tail_tokens_max=32),
        engine="engine",
        start=start,
        clock=clock,
        hash_function=hash_function,
        supported=supported,
        calibrator=calibrator,
        marker=marker,
    )


def block_table(request_id: str) -> Sequence[int]:
    """Return blocks enough for every prompt of these tests."""
    return range(20)


def complete(planner: TailPlanner, entry: int) -> None:
    """All workers say that they hold the tail whole."""
    planner.completed(Built(entry))


def fail(planner: TailPlanner, entry: int) -> None:
    """A worker says that it could not build the tail."""
    planner.failed(Built(entry))


def build(planner: TailPlanner, facts: Facts) -> int:
    """Build a tail in one step, and return its entry."""
    assert planner.add(facts), f"a build begins: {planner.reason(facts.request_id)}"
    operations = planner.close_step([(facts.request_id, 0, len(facts.prompt))], block_table)
    entry = operations.begins[-1].entry
    complete(planner, entry)
    planner.finish(facts.request_id)
    return entry


def admitted(planner: TailPlanner, request_id: str) -> Splice:
    """Admit a read that was matched into the step, and return its splice."""
    admission = planner.admit(request_id, 1)
    assert admission is not None and admission.splice is not None, "a matched read is spliced"
    return admission.splice


def admit(planner: TailPlanner, facts: Facts, hit: int = 0) -> tuple[Splice, Operations]:
    """Admit a read into a step of its own, and return its splice and the step's operations."""
    planner.add(facts)
    matched = planner.match(facts.request_id, hit, WIDE)
    assert matched, f"a live tail is read: {planner.reason(facts.request_id)}"
    splice = admitted(planner, facts.request_id)
    first = hit + matched
    return splice, planner.close_step([(facts.request_id, first, len(facts.prompt) - first)], block_table)
