"""The planner under a small scheduler: random arrivals, chunks, aborts, preemptions and failures."""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

import pytest

from sternpost_core.hint import Correction, Operation, Reason
from sternpost_engine.calibration import AS_BUILT
from sternpost_engine.index import State
from sternpost_engine.operations import Load, Operations, Outcome, Splice
from sternpost_engine.reads import Admission
from sternpost_engine.rules import Facts, Limits
from sternpost_engine.tracks import Room
from sternpost_fakes.clock import FakeClock
from sternpost_fakes.middles import make_calibrator, make_marker
from sternpost_fakes.obedient_worker import ObedientWorker
from sternpost_fakes.tail_requests import BLOCK_SIZE, admitted, build_facts, make_planner, read_facts

STEPS: Final = 250
"""Steps with arrivals; then the simulation goes on until nothing is left."""

STEPS_MAX: Final = 4 * STEPS
"""A request that never ends would keep the simulation going: that is an error."""

STEP_SECONDS: Final = 20.0
"""So long that a busy engine calibrates every few steps."""

BUDGET_TOKENS: Final = 136
"""Room for a few tails, of which two or three have their means, so that evictions never cease."""

SAMPLES: Final = 2
"""Middles of a mean."""

CORRECTIONS: Final = (Correction.CALIBRATED, Correction.NONE)

TAILS: Final = tuple(tuple(range(1000 * number, 1000 * number + 5 + 5 * number)) for number in range(6))
"""Tails of 5 to 30 tokens, in rooms of 8, 16 and 32."""

BLOCKS: Final = range(100)

SEEDS: Final = range(12)


ROOM_TOKENS_MAX: Final = 80
"""The longest middles are longer, and computed in chunks first."""

ROOM_ROWS_MAX: Final = 6


@dataclass(slots=True)
class Request:
    """One request, as a scheduler keeps it; `whole` says that it reads nothing from the prefix store."""

    facts: Facts
    outputs_left: int
    whole: bool
    computed: int = 0


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
        self.clock = FakeClock()
        self.calibrator = make_calibrator(samples=SAMPLES)
        self.planner = make_planner(
            budget_tokens=BUDGET_TOKENS,
            limits=Limits(tail_tokens_min=4, tail_tokens_max=32, tail_share_min=0.02, deferrals_max=3),
            hash_function=lambda identity, tokens: tokens[0] // 8 % 4,
            clock=self.clock,
            calibrator=self.calibrator,
            marker=make_marker(),
        )
        self.worker = ObedientWorker(distrusts=lambda capture: self.chance(0.1), samples=SAMPLES)
        self.waiting: deque[Request] = deque()
        self.running: dict[str, Request] = {}
        self.flying: deque[InFlight] = deque()
        self.room = Room(0, 0, 0, 0)
        self.builders: dict[int, Facts] = {}
        self.arrivals = 0
        self.steps = 0
        self.met: Counter[str] = Counter()

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
        self.clock.advance(STEP_SECONDS)
        for _ in range(self.random.choice((0, 0, 1, 2)) if self.steps < STEPS else 0):
            self.arrive()
        self.disturb()
        self.room = Room(
            self.random.randint(0, ROOM_TOKENS_MAX),
            self.random.randint(0, ROOM_ROWS_MAX),
            ROOM_TOKENS_MAX,
            ROOM_ROWS_MAX,
        )
        scheduled = [*self.schedule_running(), *self.admit_waiting()]
        splices = self.planner.take_splices()
        operations = self.planner.close_step(scheduled, lambda request_id: BLOCKS)
        self.check_loads(operations.loads, splices)
        self.count(operations, splices)
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
        builds = self.planner.add(facts)
        if builds:
            entry = max(record.entry for record in self.planner.index.records())
            self.builders[entry] = facts
        self.waiting.append(Request(facts, outputs_left=self.random.randint(1, 4), whole=builds))

    def make_request(self, request_id: str) -> Facts:
        """Return a request of one of two tenants and two epochs; every other tail is to be calibrated."""
        number = self.random.choices(range(len(TAILS)), weights=(6, 2, 6, 2, 1, 1))[0]
        tail, correction = TAILS[number], CORRECTIONS[number % 2]
        salt, epoch = self.random.choice("aaab"), self.random.choice((0, 0, 0, 0, 0, 1))
        if self.chance(0.2):
            insert = self.random.choice((0, 5, 8))
            return build_facts(request_id, tail, salt=salt, epoch=epoch, correction=correction, insert=insert)
        pointed_at = self.random.choices(tail, k=self.random.choice((0, 2, 3)))
        middle = [*range(self.random.randint(1, self.random.choice((30, 90)))), *pointed_at]
        return read_facts(
            request_id,
            tail,
            middle=middle,
            salt=salt,
            epoch=epoch,
            op=Operation.OFF if self.chance(0.1) else Operation.READ,
            head=self.random.choice((0, 0, 1)),
            match=self.random.choice((0, 4, 16)),
            correction=correction,
        )

    def calibrate(self) -> None:
        """Let a sample wait like any other request, when the calibrator has one."""
        taken = self.planner.next_sample(idle=not self.running and not self.waiting)
        if taken is not None:
            facts = Facts(request_id=taken[0], prompt=taken[1].prompt)
            assert self.planner.add(facts), "a sample computes its whole prompt"
            self.waiting.append(Request(facts, outputs_left=1, whole=True))

    def disturb(self) -> None:
        """Abort or preempt a request, or reset the engine's caches."""
        if self.running and self.chance(0.05):
            victim = self.running.pop(self.random.choice(list(self.running)))
            victim.computed = 0
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
            self.resume(request_id, request)
            end = self.planner.chunk_end(request_id)
            if end is None or request.computed < end:
                yield self.advance(request_id, request, end)

    def resume(self, request_id: str, request: Request) -> None:
        """Splice a request whose middle is computed in chunks, if the planner says so."""
        admission = self.planner.resume(request_id, request.computed, self.room)
        if admission is None:
            return
        splice = admission.splice
        assert splice is not None and splice.hit == request.computed, "it goes on where its chunks ended"
        if self.chance(0.2):
            self.met["withdrawals"] += 1
            self.planner.withdraw(splice)
            return
        self.met["splices of long middles"] += 1
        self.take_room(splice, own_rows=0)
        request.computed = splice.copied

    def take_room(self, splice: Splice, *, own_rows: int) -> None:
        """Take what a splice needs; there must be that much."""
        tokens, rows = splice.middle_tokens + splice.matched_tokens, len(splice.rows) + own_rows
        assert tokens <= self.room.tokens and rows <= self.room.rows, "what rides along has room"
        self.room = replace(self.room, tokens=self.room.tokens - tokens, rows=self.room.rows - rows)

    def advance(self, request_id: str, request: Request, end: int | None = None) -> tuple[str, int, int]:
        """Schedule the next tokens of a request."""
        first, left = request.computed, (end or len(request.facts.prompt)) - request.computed
        count = self.random.randint(1, left) if left > 0 else 1
        request.computed += count
        return request_id, first, count

    def admit_waiting(self) -> Iterator[tuple[str, int, int]]:
        """Ask the planner about each waiting request, and admit those for which there are blocks."""
        for request in tuple(self.waiting):
            request_id = request.facts.request_id
            hit = self.look_up(request)
            loaded = self.planner.match(request_id, hit, self.room)
            if loaded is None or self.chance(0.2):
                continue
            if loaded:
                self.take_room(admitted(self.planner, request_id), own_rows=1)
            else:
                self.count_covered(self.planner.admit(request_id, loaded))
            request.computed = 0 if request.whole else hit + loaded
            self.waiting.remove(request)
            self.running[request_id] = request
            yield self.advance(request_id, request, self.planner.chunk_end(request_id))

    def look_up(self, request: Request) -> int:
        """Return how much of the prompt the prefix store holds, exact or as an earlier read left it."""
        exact = self.random.choice((0, 8, 8, 12))
        space = self.planner.open_space(request.facts.request_id, exact)
        if space is None:
            return exact
        assert space.first >= exact, "what is exact is in no namespace"
        if self.chance(0.2):
            self.planner.close_space(request.facts.request_id)
            return exact
        most = len(request.facts.prompt) - 1
        return self.random.randint(space.first, most) if self.chance(0.4) else exact

    def count_covered(self, admission: Admission | None) -> None:
        """Count a read that copies nothing because the prefix store has its approximate blocks."""
        if admission is not None:
            assert admission.splice is None, "nothing is loaded"
            self.met["covered reads"] += 1

    def process(self, step: InFlight) -> None:
        """Pass on what the workers answered, and end the requests that have all their outputs."""
        for built in step.outcome.failed:
            self.planner.failed(built)
        for built in step.outcome.completed:
            self.planner.completed(built)
        for splice in step.splices:
            if splice not in step.failed:
                self.planner.copied(splice)
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
        self.calibrate()

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
            assert splice.hit <= splice.exact < splice.copied < splice.total == len(reader.prompt)
            assert (splice.exact, splice.copied) == (span.position, span.position + span.count)
            self.check_rows(splice)

    def check_rows(self, splice: Splice) -> None:
        """The rows that ride along are apart, in order, and none computes what another one does."""
        ends = [0, *(end for _, end in splice.rows)]
        assert all(before <= first < end for before, (first, end) in zip(ends, splice.rows, strict=False))
        runs = splice.rows[1:] if splice.middle_tokens else splice.rows
        assert all(splice.exact <= first and end <= splice.copied for first, end in runs)
        computed = sum(end - first for first, end in splice.rows) + splice.total - splice.copied
        assert splice.total == splice.hit - splice.approximate + computed + splice.suffix_tokens

    def count(self, operations: Operations, splices: tuple[Splice, ...]) -> None:
        """Count what a simulation is there to meet."""
        self.met["samples"] += sum(capture.number > 0 and capture.final for capture in operations.captures)
        self.met["means"] += len(operations.finished)
        self.met["reads of a mean"] += sum(load.mix != AS_BUILT for load in operations.loads)
        self.met["reads between means"] += sum(len(load.mix.shares) > 1 for load in operations.loads)
        self.met["matches"] += sum(len(splice.runs) > 0 for splice in splices)
        self.met["matches apart"] += sum(len(splice.runs) > 1 for splice in splices)

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
    assert 0 == simulation.calibrator.pending


def test_simulation_meets_every_turn_of_a_request() -> None:
    """A simulation in which nothing happens would prove nothing."""
    met: Counter[Reason | str] = Counter()
    for seed in SEEDS:
        simulation = Simulation(seed, depth=1)
        simulation.run()
        met.update(simulation.planner.requests)
        met.update(simulation.met)

    expected = {
        Reason.HIT,
        Reason.BUILT,
        Reason.BUILDING,
        Reason.NOT_BUILT,
        Reason.OFF,
        Reason.FALSE_HIT,
        Reason.COPY_FAILED,
        Reason.BUSY,
        Reason.POOL_FULL,
        Reason.PREFIX_COVERS,
        Reason.UNSUPPORTED,
        "samples",
        "means",
        "reads of a mean",
        "reads between means",
        "covered reads",
        "splices of long middles",
        "withdrawals",
        "matches",
        "matches apart",
    }
    assert set() == expected - {turn for turn, count in met.items() if count}
