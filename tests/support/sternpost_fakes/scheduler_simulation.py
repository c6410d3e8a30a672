"""Random load on vLLM's own scheduler, with a worker that follows every token's context."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from sternpost_core.hint import Hint, Operation, Reason
from sternpost_engine.operations import Load
from sternpost_fakes.real_scheduler import BLOCK_TOKENS, make_real_scheduler, request_maker
from sternpost_fakes.symbolic_worker import SymbolicWorker, Tag, next_token
from sternpost_fakes.vllm_modules import import_object

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
    """A request as it was sent; one that is `apart` does not read the prefix store."""

    prompt: tuple[int, ...]
    salt: str
    hint: Hint
    answer_tokens: int
    priority: int = 0
    apart: bool = False


@dataclass(slots=True)
class Served:
    """What came back of a request."""

    tokens: list[int] = field(default_factory=list)
    report: dict[str, Any] | None = None
    ended: bool = False
    preempted: bool = False


class Simulation:
    """
    Requests on a scheduler; `depth` steps may be in flight, two as under async scheduling.

    Each answer is checked when it ends. `fail_share` is the share of copies that fail.
    """

    def __init__(
        self, scheduler: Any, make_request: Callable[..., Any], seed: int, depth: int, fail_share: float
    ) -> None:
        self.random = Random(seed)
        self.fail_share = fail_share
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
        """Let requests come and be disturbed, and end."""
        for _ in range(STEPS):
            self.arrive()
            self.disturb()
            self.step()
        self.finish()

    def finish(self) -> int:
        """Step until every request has ended; returns how many steps that took."""
        for step in range(STEPS_MAX):
            if not self.scheduler.requests:
                while self.flying:
                    self.process()
                return step
            self.step()
        raise AssertionError(f"every request ends: {list(self.scheduler.requests)}")

    def step(self) -> None:
        """Schedule and execute a step, and process the oldest output where enough are in flight."""
        output = self.scheduler.schedule()
        self.count(output)
        # An empty step is executed, too: it tells the workers which requests have ended.
        self.flying.append((output, self.worker.execute(output)))
        if len(self.flying) >= self.depth:
            self.process()

    def process(self) -> None:
        """Process the oldest output in flight."""
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
            self.ask(self.make_asked())

    def ask(self, asked: Asked) -> str:
        """Send a request, and return its id."""
        request_id = f"request-{len(self.asked)}"
        self.asked[request_id], self.served[request_id] = asked, Served()
        self.scheduler.add_request(
            self.make_request(
                request_id,
                list(asked.prompt),
                transfer={"sternpost": asked.hint.to_mapping()},
                salt=asked.salt,
                answer_tokens=asked.answer_tokens,
                priority=asked.priority,
                apart=asked.apart,
            )
        )
        return request_id

    def make_asked(self) -> Asked:
        """Return a build, a read, or a request that is switched off."""
        tail, salt = self.random.choice(TAILS), self.random.choice("ab")
        epoch, priority = int(self.chance(0.1)), self.random.choice((0, 1))
        if self.chance(0.15):
            return build_of(tail, salt=salt, epoch=epoch)
        operation = Operation.OFF if self.chance(0.2) else Operation.READ
        return read_of(
            tail,
            middle_tokens=self.random.choice(MIDDLES),
            answer_tokens=self.random.choice((1, 1, 3, 12)),
            salt=salt,
            priority=priority,
            apart=self.chance(0.1),
            op=operation,
            epoch=epoch,
            **self.random.choice(SETTINGS),
        )

    def disturb(self) -> None:
        """Abort a request, or empty the caches."""
        if self.scheduler.requests and self.chance(0.1):
            self.abort(self.random.choice(list(self.scheduler.requests)))
        if self.chance(0.02):
            self.side.planner.reset()

    def abort(self, request_id: str) -> None:
        """The client goes away."""
        aborted = import_object("vllm.v1.request:RequestStatus").FINISHED_ABORTED
        self.scheduler.finish_requests(request_id, aborted)

    def fails(self, load: Load) -> bool:
        """Let some copies fail."""
        failed = self.chance(self.fail_share)
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

    def check_hits(self, copied: int) -> None:
        """Check what vLLM counts as loaded in the step, and take it, as a step of an engine would."""
        stats = self.scheduler.connector_prefix_cache_stats
        assert 0 <= stats.hits <= copied
        assert [stats.hits] * bool(stats.hits_by_source) == list(stats.hits_by_source.values())
        self.scheduler.connector_prefix_cache_stats = type(stats)()

    def count(self, output: Any) -> None:
        """Count what a simulation is there to meet; what vLLM counts as loaded is what is copied."""
        operations = output.kv_connector_metadata.operations
        self.check_hits(sum(load.span.count for load in operations.loads))
        for request_id in output.preempted_req_ids or ():
            self.served[request_id].preempted = True
            self.met["preemptions"] += 1
        for load in operations.loads:
            # The worker knows a running request already.
            self.met["splices of long middles"] += load.request_id in self.worker.requests
        adopted = [new for new in output.scheduled_new_reqs if new.req_id in self.asked]
        loaded = {load.request_id for load in operations.loads}
        for new in adopted:
            reason = self.side.planner.reason(new.req_id)
            self.met["reads apart"] += self.asked[new.req_id].apart
            self.met["covered"] += reason is Reason.HIT and new.req_id not in loaded


def build_of(tail: tuple[int, ...], *, salt: str = "a", epoch: int = 0) -> Asked:
    """Return a request that builds a tail."""
    hint = Hint(op=Operation.BUILD, prefix_tokens=len(SCAFFOLD), tail_tokens=len(tail), epoch=epoch)
    return Asked((*SCAFFOLD, *tail), salt, hint, answer_tokens=1)


def read_of(
    tail: tuple[int, ...],
    *,
    middle_tokens: int,
    answer_tokens: int,
    salt: str = "a",
    priority: int = 0,
    apart: bool = False,
    **hint: Any,
) -> Asked:
    """Return a request with a middle of so many tokens, which are the same for all of that length."""
    middle = range(8000 + middle_tokens, 8000 + 2 * middle_tokens)
    values = {"op": Operation.READ, "last": 4, **hint}
    read = Hint(prefix_tokens=len(SCAFFOLD), tail_tokens=len(tail), **values)
    return Asked((*SCAFFOLD, *middle, *tail), salt, read, answer_tokens, priority, apart)


def simulate(folder: Path, seed: int, depth: int, policy: str = "fcfs") -> Simulation:
    """Run a simulation over a cache that is too small for what runs at once."""
    scheduler = make_real_scheduler(folder, blocks=70, policy=policy, async_scheduling=depth > 1)
    simulation = Simulation(scheduler, request_maker(), seed, depth, fail_share=0.1)
    simulation.run()
    return simulation
