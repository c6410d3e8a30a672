"""
The scheduler side of the suffix store, without torch and without vLLM.

The planner follows each request from its arrival to its end, decides whether it builds a tail, reads one or
goes on exactly, and says what the workers must do in each step. vLLM's scheduler and connector are adapters
around it.

A splice in one forward: the request is admitted as if all but its last tokens had been loaded; the worker
copies the stored tail into its blocks before the forward; the middle, which nothing has computed yet, rides
along as a second row over the same blocks. Each layer writes the keys of the whole batch before it attends,
so the last tokens see the middle's keys of the same layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from sternpost_core.clock import Clock
from sternpost_core.hint import Correction, Hint, Mode, Operation, Reason
from sternpost_engine.calibration import LENGTHS, SCAFFOLD, Calibrator, Job, Sample
from sternpost_engine.index import Eviction, Found, Record, SuffixIndex
from sternpost_engine.keys import TailHash, TailIdentity, TailKey, hash_tail, tail_key
from sternpost_engine.marking import Marker
from sternpost_engine.operations import Begin, Built, Capture, Load, Operations, Span, Splice
from sternpost_engine.reads import Admission, TailReads
from sternpost_engine.rules import Facts, Limits, read_wish
from sternpost_engine.tracks import Course, Room, Space, Track

CALIBRATED_COPIES: Final = 1 + len(LENGTHS) + 1
"""A calibrated tail is held as it was built, once per mean, and once for the sample in work."""

SAMPLE_PREFIX: Final = "sternpost-calibration"
"""Begins the id of a calibration's request; no request of a client can have it, for vLLM makes the ids."""


class BlockTable(Protocol):
    """Where a request's KV lies."""

    def __call__(self, request_id: str) -> Sequence[int]:
        """Return the request's KV blocks from the prompt's beginning on."""


@dataclass(slots=True)
class _Step:
    """What has been planned for the step that is being scheduled."""

    splices: list[Splice] = field(default_factory=list)
    begins: list[Begin] = field(default_factory=list)


class TailPlanner:
    """
    Decides for each request and each step what the suffix store does.

    `engine` is the engine's own part of every tail's identity, and `start` names this start of it.
    `supported` is False where the compatibility gate refused: then every hinted request is served exactly,
    with that reason. Without a calibrator tails stay as they were built, without a marker nothing is matched.
    """

    def __init__(
        self,
        index: SuffixIndex,
        limits: Limits,
        *,
        engine: str,
        clock: Clock,
        start: str = "",
        supported: bool = True,
        hash_function: TailHash = hash_tail,
        calibrator: Calibrator | None = None,
        marker: Marker | None = None,
    ) -> None:
        self.index = index
        self.limits = limits
        self.requests: Counter[Reason] = Counter()
        self._engine = engine
        self._clock = clock
        self._supported = supported
        self._hash_function = hash_function
        self._calibrator = calibrator
        self._marker = marker
        self._jobs: dict[int, Job] = {}
        self._reads = TailReads(index, limits, engine=start, jobs=self._jobs, marker=marker)
        self._finished: list[Built] = []
        self._tracks: dict[str, Track] = {}
        self._step = _Step()

    # -- a request's life -------------------------------------------------------------------------------

    def add(self, facts: Facts) -> bool:
        """
        Take a new request; returns whether it builds a tail.

        A build must compute its whole tail, so the caller keeps it from reading the prefix store.
        """
        if facts.request_id in self._tracks:
            # A calibration's sample, which the planner made itself.
            return True
        wish = read_wish(facts, self.limits)
        track = Track(total=len(facts.prompt), reason=wish.reason)
        self._tracks[facts.request_id] = track
        if wish.hint is None:
            return False
        if not self._supported:
            track.reason = Reason.UNSUPPORTED
            return False
        track.hint = wish.hint
        tail = tuple(facts.prompt[track.tail_start :])
        track.key = tail_key(self._identity(facts, wish.hint), tail, self._hash_function)
        if wish.hint.op is Operation.BUILD:
            return self._begin_build(track, facts, tail)
        track.prompt = facts.prompt
        return False

    def finish(self, request_id: str) -> None:
        """Let a request go: it ended, well or not. A build that was not completed is given up."""
        track = self._tracks.pop(request_id, None)
        if track is None:
            return
        if track.sample is not None:
            self._end_sample(track)
            return
        self.requests[track.reason] += 1
        if track.building and track.entry is not None:
            self.index.retire(track.entry, Eviction.ABORTED)

    def reason(self, request_id: str) -> Reason:
        """Why the request did, or did not, use the store."""
        track = self._tracks.get(request_id)
        return track.reason if track is not None else Reason.NOT_ASKED

    def owner(self, request_id: str) -> str:
        """Whose tail the request reads, as reports name scopes; empty when it reads none."""
        track = self._tracks.get(request_id)
        return track.owner if track is not None and track.reason is Reason.HIT else ""

    def register_max(self, request_id: str) -> int | None:
        """How many of the request's first tokens may be registered in the prefix store; None: all."""
        track = self._tracks.get(request_id)
        return track.register_max if track is not None else None

    def chunk_end(self, request_id: str) -> int | None:
        """Where ordinary chunks of the request must end, since a splice follows; None: nowhere."""
        track = self._tracks.get(request_id)
        return track.exact_end if track is not None and track.course is Course.CHUNKED else None

    def builds(self, request_id: str) -> bool:
        """Whether what is computed of the request's tail is still to be kept."""
        track = self._tracks.get(request_id)
        return track is not None and track.building and not track.captured

    def next_sample(self, *, idle: bool) -> tuple[str, Sample] | None:
        """Return a calibration's next request, its id and sample, when it may be computed now."""
        if self._calibrator is None:
            return None
        sample = self._calibrator.next_sample(self._clock.monotonic(), idle=idle)
        if sample is None:
            return None
        request_id = f"{SAMPLE_PREFIX}-{sample.entry}-{sample.variant}-{sample.number}"
        self._tracks[request_id] = Track(
            total=len(sample.prompt),
            reason=Reason.NOT_ASKED,
            entry=sample.entry,
            building=True,
            register_max=0,
            sample=sample,
        )
        return request_id, sample

    # -- scheduling a step ------------------------------------------------------------------------------

    def pending_middle(self, request_id: str, most: int, computed: int = 0) -> int:
        """How many tokens, of `most`, may ride along with the request's splice; 0 when it reads nothing."""
        track = self._tracks.get(request_id)
        return self._reads.pending(track, most, computed) if track is not None else 0

    def open_space(self, request_id: str, exact_hit: int) -> Space | None:
        """
        Return the namespace of the request's approximate blocks, before they are looked up.

        `exact_hit` tokens are in the prefix store under the ordinary hashes. None: there are only those.
        """
        track = self._tracks.get(request_id)
        return self._reads.open_space(track, exact_hit) if track is not None else None

    def close_space(self, request_id: str) -> None:
        """The request has no whole block in its namespace: what is approximate stays unregistered."""
        self._tracks[request_id].space = None

    def in_space(self, request_id: str) -> bool:
        """Whether the request's blocks past its exact part have hashes of their own."""
        track = self._tracks.get(request_id)
        return track is not None and track.space is not None

    def match(self, request_id: str, hit: int, room: Room) -> int | None:
        """
        Say how many tokens after the first `hit` count as loaded when the request is admitted now.

        0 means that vLLM goes on behind the hit by itself, in chunks where a splice follows; None means that
        it should ask again in the next step.
        """
        track = self._tracks.get(request_id)
        return self._reads.match(track, hit, room) if track is not None else 0

    def admit(self, request_id: str, loaded: int) -> Admission | None:
        """
        The request was admitted: plan its splice into this step.

        `loaded` is what `match` said, or 0 where vLLM would not have it.
        """
        track = self._tracks.get(request_id)
        return self._planned(self._reads.admit(track, request_id, loaded)) if track is not None else None

    def resume(self, request_id: str, computed: int, room: Room) -> Admission | None:
        """Plan the splice of a running request that has computed so many tokens in chunks, if it fits."""
        track = self._tracks.get(request_id)
        if track is None:
            return None
        return self._planned(self._reads.resume(track, request_id, computed, room))

    def withdraw(self, splice: Splice) -> None:
        """A running request got no place in the step: take its splice out of it."""
        self._step.splices.remove(splice)
        track = self._tracks.get(splice.request_id)
        if track is not None:
            self._reads.withdraw(track, splice)

    def take_splices(self) -> tuple[Splice, ...]:
        """Return the splices planned since the last step was closed."""
        return tuple(self._step.splices)

    def close_step(self, scheduled: Sequence[tuple[str, int, int]], block_table: BlockTable) -> Operations:
        """
        Close the step: say what the workers must do in it.

        `scheduled` holds for each scheduled request its id, its first position in this step and its tokens.
        """
        step, self._step = self._step, _Step()
        captures = [
            capture
            for request_id, first, count in scheduled
            if (capture := self._capture(request_id, first, count, block_table)) is not None
        ]
        drops = tuple(self.index.take_freed())
        for entry in drops:
            self._forget(entry)
        finished, self._finished = tuple(self._finished), []
        return Operations(
            drops=drops,
            # A build that was given up before its first step is among the drops, which come first.
            begins=tuple(begin for begin in step.begins if self.index.record(begin.entry) is not None),
            finished=tuple(built for built in finished if self.index.record(built.entry) is not None),
            loads=tuple(self._load(splice, block_table) for splice in step.splices),
            captures=tuple(captures),
            shifts=tuple(self._shifts(scheduled, step.splices, block_table)),
        )

    # -- what the workers answered ----------------------------------------------------------------------

    def copied(self, splice: Splice) -> None:
        """
        The tail is in the request's blocks: they may be registered in the namespace, if there is one.

        Where the request began anew meanwhile, its blocks are those of another splice, which is in flight.
        """
        track = self._tracks.get(splice.request_id)
        if track is not None and track.space is not None and track.splice is splice:
            track.register_max = None

    def step_done(self, splices: Sequence[Splice]) -> None:
        """The step's output has been processed: its readers let go of their tails."""
        for splice in splices:
            self.index.release(splice.entry)

    def completed(self, built: Built) -> None:
        """All workers hold the tail's KV whole, or have taken the sample into its mean."""
        if built.variant == SCAFFOLD:
            self.index.complete(built.entry)
            self._start_calibration(built.entry)
        for track in self._building(built):
            track.reason, track.building = Reason.BUILT, False
            if track.sample is not None and track.sample.final:
                self._mean_ready(built)

    def failed(self, built: Built) -> None:
        """A worker could not build the tail, or did not trust what it built; a sample is taken again."""
        if built.variant != SCAFFOLD:
            for track in self._building(built):
                track.sample_failed = True
            return
        self.index.retire(built.entry, Eviction.FAILED)
        for track in self._building(built):
            track.reason, track.building = Reason.UNSUPPORTED, False

    def copy_failed(self, request_id: str) -> None:
        """A worker could not copy the tail to the request's blocks: it is computed exactly instead."""
        track = self._tracks.get(request_id)
        if track is not None:
            track.give_up(Reason.COPY_FAILED)

    def reset(self) -> None:
        """Make every tail unreachable; readers of the running step finish with what they have."""
        self.index.retire_all(Eviction.RESET)
        for track in self._tracks.values():
            if track.building and track.sample is None:
                track.reason, track.building = Reason.NOT_BUILT, False

    @property
    def supported(self) -> bool:
        """Whether the store is used."""
        return self._supported

    def refuse(self) -> None:
        """Serve every hinted request exactly from now on: the engine turned out not to be supported."""
        self._supported = False
        self.reset()

    def end_calibration(self) -> None:
        """Make no more samples; the tails stay as far calibrated as they are."""
        self._calibrator = None

    def refuse_anchors(self) -> None:
        """Serve every request that asks for an anchored tail exactly: no worker may shift positions."""
        self.limits = replace(self.limits, positions_max=0)

    @property
    def lookups(self) -> Counter[Found]:
        """How many lookups found what."""
        return self._reads.lookups

    # -- details ----------------------------------------------------------------------------------------

    def _identity(self, facts: Facts, hint: Hint) -> TailIdentity:
        return TailIdentity(
            mode=hint.mode.value,
            anchor=hint.anchor,
            scaffold=hint.scaffold,
            salt=facts.salt,
            epoch=hint.epoch,
            lora=facts.lora,
            kind=hint.kind,
            correction=hint.correction.value,
            engine=self._engine,
        )

    def _planned(self, admission: Admission | None) -> Admission | None:
        if admission is not None and admission.splice is not None:
            self._step.splices.append(admission.splice)
        return admission

    def _begin_build(self, track: Track, facts: Facts, tail: tuple[int, ...]) -> bool:
        assert track.key is not None and track.hint is not None
        lookup = self.index.look_up(track.key)
        if lookup.record is not None:
            track.reason = Reason.HIT if lookup.found is Found.LIVE else Reason.BUILDING
            return False
        record = self._reserve(track.key, track.hint)
        if record is None:
            track.reason = Reason.POOL_FULL
            return False
        track.entry, track.building, track.reason = record.entry, True, Reason.BUILDING
        if track.shift:
            track.register_max = track.tail_start
        scaffold = tuple(facts.prompt[: track.tail_start])
        self._jobs[record.entry] = Job(
            record.entry,
            scaffold,
            min(track.hint.insert, len(scaffold)),
            tail,
            track.hint.kind,
            facts.adapter,
        )
        if self._marker is not None:
            self._marker.learn(record.entry, tail)
        self._step.begins.append(Begin(record.entry, tail))
        return True

    def _reserve(self, key: TailKey, hint: Hint) -> Record | None:
        """Make room, for the means too where they are asked for; a tail without means is better than none."""
        # An anchored tail's means would need middles that end at the anchor.
        calibrated = hint.correction is Correction.CALIBRATED and hint.mode is Mode.ROTATE
        if calibrated and self._calibrator is not None:
            record = self.index.begin(key, CALIBRATED_COPIES)
            if record is not None:
                record.calibrated = True
                return record
        return self.index.begin(key)

    def _start_calibration(self, entry: int) -> None:
        record, job = self.index.record(entry), self._jobs.get(entry)
        if self._calibrator is not None and job is not None and record is not None and record.calibrated:
            self._calibrator.want(job)

    def _mean_ready(self, built: Built) -> None:
        record = self.index.record(built.entry)
        if record is not None:
            record.variants.add(built.variant)
            self._finished.append(built)

    def _end_sample(self, track: Track) -> None:
        if self._calibrator is not None and track.sample is not None:
            self._calibrator.done(
                track.sample,
                self._clock.monotonic(),
                computed=not track.building,
                failed=track.sample_failed,
            )

    def _building(self, built: Built) -> list[Track]:
        return [
            track
            for track in self._tracks.values()
            if track.building
            and track.entry == built.entry
            and (track.sample.variant if track.sample is not None else SCAFFOLD) == built.variant
        ]

    def _forget(self, entry: int) -> None:
        self._jobs.pop(entry, None)
        if self._calibrator is not None:
            self._calibrator.forget(entry)
        if self._marker is not None:
            self._marker.forget(entry)

    def _load(self, splice: Splice, block_table: BlockTable) -> Load:
        span = Span(
            blocks=tuple(block_table(splice.request_id)),
            position=splice.exact,
            offset=splice.exact - splice.tail,
            # The runs too, though they are computed afresh: their rows write over the copy in the forward.
            count=splice.copied - splice.exact,
            shift=splice.shift,
        )
        return Load(splice.request_id, splice.entry, span, splice.mix)

    def _shifts(
        self,
        scheduled: Sequence[tuple[str, int, int]],
        splices: Sequence[Splice],
        block_table: BlockTable,
    ) -> Iterator[Span]:
        """Yield what the step computes of anchored tails, and behind them."""
        rows = [(splice.request_id, first, end - first) for splice in splices for first, end in splice.rows]
        for request_id, first, count in (*scheduled, *rows):
            track = self._tracks.get(request_id)
            if track is None or track.shift == 0 or not (track.building or track.course is not Course.ASKED):
                continue
            begin, end = max(first, track.tail_start), first + count
            if begin < end:
                blocks = tuple(block_table(request_id))
                yield Span(blocks, begin, begin - track.tail_start, end - begin, track.shift)

    def _capture(self, request_id: str, first: int, count: int, block_table: BlockTable) -> Capture | None:
        track = self._tracks.get(request_id)
        if track is None or not track.building or track.captured or track.entry is None:
            return None
        begin, end = max(first, track.tail_start), min(first + count, track.total)
        if begin >= end:
            return None
        blocks = tuple(block_table(request_id))
        span = Span(blocks, begin, begin - track.tail_start, end - begin, track.shift)
        # A build that is preempted while its last capture is in flight computes its tail again. Nothing of
        # that is kept: the tail may be live by then.
        track.captured = end == track.total
        if track.sample is None:
            return Capture(track.entry, span, final=track.captured)
        variant, number = track.sample.variant, track.sample.number
        return Capture(track.entry, span, final=track.captured, variant=variant, number=number)
