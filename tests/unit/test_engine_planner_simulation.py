"""The planner under a small scheduler: random arrivals, chunks, aborts, preemptions and failures."""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

import pytest

from sternpost_core.hint import Operation, Reason
from sternpost_engine.index import State
from sternpost_engine.operations import Load, Outcome, Splice
from sternpost_engine.planner import Room
from sternpost_engine.rules import Facts, Limits
from sternpost_fakes.obedient_worker import ObedientWorker
from sternpost_fakes.tail_requests import BLOCK_SIZE, build_facts, complete, fail, make_planner, read_facts

STEPS: Final = 250
"""Steps with arrivals; then the simulation goes on until nothing is left."""

STEPS_MAX: Final = 4 * STEPS
"""A request that never ends would keep the simulation going: that is an error."""

BUDGET_TOKENS: Final = 64
"""Room for two to eight tails, so that evictions never cease."""

TAILS: Final = tuple(tuple(range(1000 * number, 1000 * number + 5 + 5 * number)) for number in range(6))
"""Tails of 5 to 30 tokens, in rooms of 8, 16 and 32."""

BLOCKS: Final = range(100)

SEEDS: Final = range(12)


@dataclass(slots=True)
class Request:
    """One request, as a scheduler keeps it."""

    facts: Facts
    outputs_left: int
    computed: int = 0
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class InFlight:
    """A step whose output has not been processed."""

    scheduled: Sequence[tuple[str, int, int]]
    splices: tuple[Splice, ...]
    outcome: Outcome
    failed: tuple[Splice, ...]


class Simulation:
    """Schedules as vLLM does, in little; `depth` steps may be in flight, two as under async scheduling."""

    def __init__(self, seed: int, depth: int) -> None:
        self.random = Random(seed)
        self.depth = depth
        self.planner = make_planner(
            budget_tokens=BUDGET_TOKENS,
            limits=Limits(tail_tokens_min=4, tail_tokens_max=32, deferrals_max=3),
            hash_function=lambda identity, tokens: tokens[0] % 2,
        )
        self.worker = ObedientWorker(distrusts=lambda entry: self.chance(0.1))
        self.waiting: deque[Request] = deque()
        self.running: dict[str, Request] = {}
        self.flying: deque[InFlight] = deque()
        self.builders: dict[int, Facts] = {}
        self.arrivals = 0
        self.steps = 0

    def run(self) -> None:
        """Run until every request has ended and every step's output has been processed."""
        while self.steps < STEPS or self.waiting or self.running:
            assert self.steps < STEPS_MAX, "every request ends"
            self.step()
        while self.flying:
            self.process(self.flying.popleft())

    def step(self) -> None:
        """Let time go on by one step."""
        self.steps += 1
        for _ in range(self.random.choice((0, 0, 1, 2)) if self.steps < STEPS else 0):
            self.arrive()
        self.disturb()
        scheduled = [*self.schedule_running(), *self.admit_waiting()]
        splices = self.planner.take_splices()
        operations = self.planner.close_step(scheduled, lambda request_id: BLOCKS)
        self.check_loads(operations.loads, splices)
        failed = tuple(splice for splice in splices if self.chance(0.1))
        self.flying.append(InFlight(scheduled, splices, self.worker.step(operations), failed))
        self.check_references()
        if len(self.flying) >= self.depth:
            self.process(self.flying.popleft())

    # -- what happens ---------------------------------------------------------------------------------------

    def chance(self, share: float) -> bool:
        """Whether something happens that happens in this share of all cases."""
        return self.random.random() < share

    def arrive(self) -> None:
        """A request comes: a read, a build, or one that does without the store."""
        self.arrivals += 1
        facts = self.make_request(f"request-{self.arrivals}")
        if self.planner.add(facts):
            entry = max(record.entry for record in self.planner.index.records())
            self.builders[entry] = facts
        self.waiting.append(Request(facts, outputs_left=self.random.randint(1, 4)))

    def make_request(self, request_id: str) -> Facts:
        """Return a request of one of two tenants and two epochs."""
        tail = self.random.choice(TAILS)
        salt, epoch = self.random.choice(("a", "b")), self.random.choice((0, 0, 0, 1))
        if self.chance(0.3):
            return build_facts(request_id, tail, salt=salt, epoch=epoch)
        op = Operation.OFF if self.chance(0.1) else Operation.READ
        middle = range(self.random.randint(1, 30))
        head = self.random.choice((0, 0, 1))
        return read_facts(request_id, tail, middle=middle, salt=salt, epoch=epoch, op=op, head=head)

    def disturb(self) -> None:
        """Abort or preempt a request, or reset the engine's caches."""
        if self.running and self.chance(0.05):
            victim = self.running.pop(self.random.choice(list(self.running)))
            victim.computed, victim.preemptions = 0, victim.preemptions + 1
            self.waiting.appendleft(victim)
        if self.running and self.chance(0.03):
            self.end(self.random.choice(list(self.running)))
        if self.waiting and self.chance(0.05):
            self.planner.finish(self.waiting.pop().facts.request_id)
        if self.chance(0.01):
            self.planner.reset()

    def end(self, request_id: str) -> None:
        """A request ends, well or not."""
        del self.running[request_id]
        self.planner.finish(request_id)

    # -- scheduling -----------------------------------------------------------------------------------------

    def schedule_running(self) -> Iterator[tuple[str, int, int]]:
        """Give each running request a chunk of its prompt, or one token of its answer."""
        for request_id, request in self.running.items():
            yield self.advance(request_id, request)

    def advance(self, request_id: str, request: Request) -> tuple[str, int, int]:
        """Schedule the next tokens of a request."""
        first, left = request.computed, len(request.facts.prompt) - request.computed
        count = self.random.randint(1, left) if left > 0 else 1
        request.computed += count
        return request_id, first, count

    def admit_waiting(self) -> Iterator[tuple[str, int, int]]:
        """Ask the planner about each waiting request, and admit those for which there are blocks."""
        room = Room(self.random.randint(0, 60), self.random.randint(0, 3), 60, 3)
        for request in tuple(self.waiting):
            request_id = request.facts.request_id
            hit = self.random.choice((0, 8, 8, 12))
            loaded = self.planner.match(request_id, hit, room, resumed=request.preemptions > 0)
            if loaded is None or self.chance(0.2):
                continue
            if loaded:
                splice = self.planner.admit(request_id, hit)
                room = Room(room.tokens - splice.middle_tokens, room.rows - 1, 60, 3)
            building = self.planner.reason(request_id) is Reason.BUILDING
            request.computed = hit + loaded if loaded else 0 if building else hit
            self.waiting.remove(request)
            self.running[request_id] = request
            yield self.advance(request_id, request)

    def process(self, step: InFlight) -> None:
        """Pass on what the workers answered, and end the requests that have all their outputs."""
        for entry in step.outcome.failed:
            fail(self.planner, entry)
        for entry in step.outcome.completed:
            complete(self.planner, entry)
        for splice in step.failed:
            self.planner.copy_failed(splice.request_id)
            if splice.request_id in self.running:
                self.running[splice.request_id].computed = splice.exact // BLOCK_SIZE * BLOCK_SIZE
        for request_id, first, count in step.scheduled:
            request = self.running.get(request_id)
            if request is not None and first + count >= len(request.facts.prompt):
                request.outputs_left -= 1
                if request.outputs_left <= 0:
                    self.end(request_id)
        self.planner.step_done(step.splices)

    # -- what always holds ----------------------------------------------------------------------------------

    def check_loads(self, loads: Sequence[Load], splices: tuple[Splice, ...]) -> None:
        """A request gets its own tail's tokens, from a build of its own tenant and epoch."""
        assert [splice.request_id for splice in splices] == [load.request_id for load in loads]
        for load, splice in zip(loads, splices, strict=True):
            reader, builder = self.running[load.request_id].facts, self.builders[load.entry]
            span, tail = load.span, self.worker.tails[load.entry].tokens
            assert (
                reader.prompt[span.position : span.position + span.count]
                == (tail[span.offset : span.offset + span.count])
            )
            assert (reader.salt, _epoch(reader)) == (builder.salt, _epoch(builder))
            assert splice.hit < splice.exact < splice.copied < splice.total == len(reader.prompt)

    def check_references(self) -> None:
        """Each splice in flight holds one reference; the rooms add up inside the budget."""
        held = Counter(splice.entry for step in self.flying for splice in step.splices)
        records = list(self.planner.index.records())
        assert held == Counter({record.entry: record.references for record in records if record.references})
        assert sum(record.room_bytes for record in records) == self.planner.index.used_bytes
        assert self.planner.index.used_bytes <= BUDGET_TOKENS


def _epoch(facts: Facts) -> object:
    assert isinstance(facts.transfer, dict)
    return facts.transfer["sternpost"]["epoch"]


@pytest.mark.parametrize("depth", [1, 2], ids=["sync", "async"])
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_left_when_every_request_has_ended(seed: int, depth: int) -> None:
    """No reference, no build, no request; and the worker holds exactly what the index does."""
    simulation = Simulation(seed, depth)

    simulation.run()
    planner, worker = simulation.planner, simulation.worker
    worker.step(planner.close_step([], lambda request_id: BLOCKS))

    assert simulation.arrivals == sum(planner.requests.values())
    assert {State.LIVE} >= {record.state for record in planner.index.records()}
    assert {record.entry for record in planner.index.records()} == set(worker.tails)

    planner.reset()
    worker.step(planner.close_step([], lambda request_id: BLOCKS))

    assert {} == worker.tails
    assert 0 == planner.index.used_bytes


def test_simulation_meets_every_turn_of_a_request() -> None:
    """A simulation in which nothing happens would prove nothing."""
    met: Counter[Reason] = Counter()
    for seed in SEEDS:
        simulation = Simulation(seed, depth=1)
        simulation.run()
        met.update(simulation.planner.requests)

    expected = {
        Reason.HIT,
        Reason.BUILT,
        Reason.BUILDING,
        Reason.NOT_BUILT,
        Reason.OFF,
        Reason.FALSE_HIT,
        Reason.PREEMPTED,
        Reason.COPY_FAILED,
        Reason.BUSY,
        Reason.POOL_FULL,
        Reason.PREFIX_COVERS,
        Reason.UNSUPPORTED,
    }
    assert set() == expected - set(met)
