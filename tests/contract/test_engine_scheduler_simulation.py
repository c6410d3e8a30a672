"""
vLLM's own scheduler under random load: every token's context is followed, slot by slot.

What is checked in each step: nothing is computed on KV that is not there, of another tenant, or approximate
where the request may not read that; and a row that rides along is never sampled. What is checked of each
answer: its tokens, and that the report's count is what the worker computed.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from sternpost_core.hint import Hint, Operation, Reason
from sternpost_engine.index import State
from sternpost_engine.operations import Load
from sternpost_fakes.real_scheduler import BLOCK_TOKENS, STEP_TOKENS, make_real_scheduler, request_maker
from sternpost_fakes.symbolic_worker import SymbolicWorker, Tag, next_token
from sternpost_fakes.vllm_modules import import_object

pytestmark = pytest.mark.engine

STEPS: Final = 150
"""Steps with arrivals; then the simulation goes on until nothing is left."""

STEPS_MAX: Final = 20 * STEPS
"""A request that never ends would keep the simulation going: that is an error."""

SCAFFOLD: Final = tuple(range(100, 110))
TAILS: Final = tuple(tuple(range(1000 * n, 1000 * n + 30 + 20 * n)) for n in range(1, 4))
"""Tails of 50, 70 and 90 tokens."""

MIDDLES: Final = (3, 20, 40, 50, 100, 150, 200, 250)
"""Middles of up to twice a step's tokens, in tokens; each has one text, so that prompts come again."""

SETTINGS: Final[tuple[dict[str, Any], ...]] = ({"last": 4}, {"last": 4}, {"last": 9, "head": 5})


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it was sent; `builds` what it builds."""

    prompt: tuple[int, ...]
    salt: str
    hint: Hint
    answer_tokens: int


@dataclass(slots=True)
class Served:
    """What came back of a request."""

    tokens: list[int] = field(default_factory=list)
    report: dict[str, Any] | None = None
    ended: bool = False
    preempted: bool = False


class Simulation:
    """`depth` steps may be in flight, two as under async scheduling."""

    def __init__(self, scheduler: Any, make_request: Callable[..., Any], seed: int, depth: int) -> None:
        self.random = Random(seed)
        self.scheduler = scheduler
        self.side = scheduler.connector.scheduler_side
        self.make_request = make_request
        self.depth = depth
        self.asked: dict[str, Asked] = {}
        self.served: dict[str, Served] = {}
        self.met: Counter[str] = Counter()
        self.worker = SymbolicWorker(
            BLOCK_TOKENS,
            tag_of=self.tag_of,
            owner_of=lambda request_id: self.asked[request_id].salt,
            may_read=lambda request_id, tag: tag == self.tag_for(request_id),
            fails=self.fails,
        )
        self.flying: deque[tuple[Any, Any]] = deque()

    def run(self) -> None:
        """Run until every request has ended."""
        for step in range(STEPS_MAX):
            if step < STEPS:
                self.arrive()
                self.disturb()
            elif not self.scheduler.requests and not self.flying:
                return
            self.step()
        raise AssertionError(f"every request ends: {list(self.scheduler.requests)}")

    def step(self) -> None:
        """Schedule and execute a step, and process the oldest output where enough are in flight."""
        output = self.scheduler.schedule()
        self.count(output)
        if output.total_num_scheduled_tokens:
            self.flying.append((output, self.worker.execute(output)))
        if len(self.flying) >= self.depth or not output.total_num_scheduled_tokens:
            self.process()

    def process(self) -> None:
        """Process the oldest output in flight."""
        if not self.flying:
            return
        for outputs in self.scheduler.update_from_output(*self.flying.popleft()).values():
            for output in outputs.outputs:
                self.take(output)

    def take(self, output: Any) -> None:
        """Take what came back of a request, and check it when that is all."""
        served, asked = self.served[output.request_id], self.asked[output.request_id]
        served.tokens += output.new_token_ids
        if output.kv_transfer_params is not None:
            served.report = output.kv_transfer_params["sternpost"]
            self.check_report(output.request_id, served)
        expected = list(asked.prompt)
        for _ in served.tokens:
            expected.append(next_token(expected))
        assert expected[len(asked.prompt) :] == served.tokens
        served.ended = output.finish_reason is not None
        assert not served.ended or asked.answer_tokens == len(served.tokens)

    def check_report(self, request_id: str, served: Served) -> None:
        """The counts add up to the prompt, and name what was computed for its first token."""
        assert served.report is not None
        report, asked = served.report, self.asked[request_id]
        self.met[report["reason"]] += 1
        prefix, suffix, computed = (report[f"{name}_tokens"] for name in ("prefix", "suffix", "computed"))
        assert len(asked.prompt) == prefix + suffix + computed
        # A build of a tail that is there is a hit, too, and reads nothing.
        assert (suffix > 0) == (report["reason"] == Reason.HIT and asked.hint.op is Operation.READ)
        if not served.preempted and self.depth == 1:
            assert self.worker.computed[request_id] == computed, f"{request_id}: {report}"

    # -- what happens -----------------------------------------------------------------------------------

    def chance(self, share: float) -> bool:
        """Whether something happens that happens in this share of all cases."""
        return self.random.random() < share

    def arrive(self) -> None:
        """Let some requests come."""
        for _ in range(self.random.choice((0, 0, 1, 1, 3))):
            request_id = f"request-{len(self.asked)}"
            asked = self.asked[request_id] = self.make_asked()
            self.served[request_id] = Served()
            self.scheduler.add_request(
                self.make_request(
                    request_id,
                    list(asked.prompt),
                    transfer={"sternpost": asked.hint.to_mapping()},
                    salt=asked.salt,
                    answer_tokens=asked.answer_tokens,
                    priority=self.random.choice((0, 1)),
                )
            )

    def make_asked(self) -> Asked:
        """Return a build, a read, or a request that is switched off."""
        tail, salt = self.random.choice(TAILS), self.random.choice("ab")
        epoch = int(self.chance(0.1))
        counts: dict[str, Any] = {"prefix_tokens": len(SCAFFOLD), "tail_tokens": len(tail), "epoch": epoch}
        if self.chance(0.15):
            return Asked((*SCAFFOLD, *tail), salt, Hint(op=Operation.BUILD, **counts), 1)
        length = self.random.choice(MIDDLES)
        middle = range(8000 + length, 8000 + 2 * length)
        operation = Operation.OFF if self.chance(0.2) else Operation.READ
        hint = Hint(op=operation, **counts, **self.random.choice(SETTINGS))
        return Asked((*SCAFFOLD, *middle, *tail), salt, hint, self.random.choice((1, 1, 3, 12)))

    def disturb(self) -> None:
        """Abort a request, or empty the caches."""
        aborted = import_object("vllm.v1.request:RequestStatus").FINISHED_ABORTED
        if self.scheduler.requests and self.chance(0.1):
            self.scheduler.finish_requests(self.random.choice(list(self.scheduler.requests)), aborted)
        if self.chance(0.02):
            self.side.planner.reset()

    def fails(self, load: Load) -> bool:
        """Let some copies fail."""
        failed = self.chance(0.1)
        self.met["failed copies"] += failed
        return failed

    # -- what is checked --------------------------------------------------------------------------------

    def tag_of(self, load: Load) -> Tag:
        """Return what a load rests on: the tail as it was built, and the reader's settings."""
        assert self.asked[load.request_id].hint.op is Operation.READ, "only a read is loaded"
        return self.tag_for(load.request_id)

    def tag_for(self, request_id: str) -> Tag:
        """Return what approximate KV a request may attend to."""
        asked = self.asked[request_id]
        tail = asked.prompt[len(asked.prompt) - asked.hint.tail_tokens :]
        return asked.hint.op, tail, asked.salt, asked.hint.epoch, asked.hint.head, asked.hint.last

    def count(self, output: Any) -> None:
        """Count what a simulation is there to meet."""
        for request_id in output.preempted_req_ids or ():
            self.served[request_id].preempted = True
            self.met["preemptions"] += 1
        for load in output.kv_connector_metadata.operations.loads:
            # The worker knows a running request already.
            self.met["splices of long middles"] += load.request_id in self.worker.requests
        adopted = [new for new in output.scheduled_new_reqs if new.req_id in self.asked]
        loaded = {load.request_id for load in output.kv_connector_metadata.operations.loads}
        for new in adopted:
            reason = self.side.planner.reason(new.req_id)
            self.met["covered"] += reason is Reason.HIT and new.req_id not in loaded


def simulate(folder: Path, seed: int, depth: int, policy: str = "fcfs") -> Simulation:
    """Run a simulation over a cache that is too small for what runs at once."""
    scheduler = make_real_scheduler(folder, blocks=70, policy=policy, async_scheduling=depth > 1)
    simulation = Simulation(scheduler, request_maker(), seed, depth)
    simulation.run()
    return simulation


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("depth", [1, 2], ids=["sync", "async"])
@pytest.mark.parametrize("seed", range(6))
def test_every_token_is_computed_on_what_it_may_read(
    tmp_path: Path, seed: int, depth: int, policy: str
) -> None:
    """Whatever is preempted, aborted, evicted or fails; and nothing is left when all requests have ended."""
    simulation = simulate(tmp_path, seed, depth, policy)
    scheduler, side = simulation.scheduler, simulation.side

    assert [] == scheduler.running
    assert 0.0 == scheduler.kv_cache_manager.usage
    assert {State.LIVE} >= {record.state for record in side.planner.index.records()}
    assert 0 == sum(record.references for record in side.planner.index.records())
    assert len(simulation.asked) == sum(side.planner.requests.values())
    assert 0 == side.hashes.held


def test_simulation_meets_every_turn_of_a_read(tmp_path: Path) -> None:
    """A simulation in which nothing happens would prove nothing."""
    met: Counter[str] = Counter()
    for seed in range(6):
        met.update(simulate(tmp_path, seed, depth=1).met)

    expected = {
        *(reason.value for reason in (Reason.HIT, Reason.BUILT, Reason.NOT_BUILT, Reason.OFF)),
        *(reason.value for reason in (Reason.BUILDING, Reason.COPY_FAILED, Reason.PREFIX_COVERS)),
        "preemptions",
        "failed copies",
        "covered",
        "splices of long middles",
    }
    assert set() == expected - {name for name, times in met.items() if times}
    assert STEP_TOKENS < max(MIDDLES)
