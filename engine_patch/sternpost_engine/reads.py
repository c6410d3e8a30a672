"""
How requests read stored tails: what a waiting read may count as loaded, and what its splice looks like.

A read is asked about in three places: before vLLM looks its blocks up (`open_space`), after that (`match`),
and when it has been admitted (`admit`). One whose middle is longer than a step has room for is computed in
ordinary chunks up to its tail and spliced while it runs (`resume`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from sternpost_core.hint import Reason
from sternpost_core.keys import owner_of
from sternpost_engine.calibration import Job, mix_for
from sternpost_engine.index import Found, Lookup, Record, SuffixIndex
from sternpost_engine.keys import TailKey
from sternpost_engine.marking import Marker
from sternpost_engine.matching import Run
from sternpost_engine.operations import Splice
from sternpost_engine.rules import Limits
from sternpost_engine.tracks import Course, Room, Space, Track

OWN_ROWS: Final = 2
"""A read takes two rows of the batch at least: its own, and the middle's."""

MISSES: Final[Mapping[Found, Reason]] = {
    Found.ABSENT: Reason.NOT_BUILT,
    Found.BUILDING: Reason.BUILDING,
    Found.FALSE_HIT: Reason.FALSE_HIT,
    Found.FOREIGN: Reason.FOREIGN_TAIL,
}
"""Why a read goes on exactly, by what was found for it."""

_SPACE_DOMAIN: Final = b"sternpost-approximate-1"


@dataclass(frozen=True, slots=True)
class Admission:
    """
    An admitted read: its prompt's tokens that are not computed, by source, and its splice.

    Approximate blocks that the prefix store kept from an earlier read count as `suffix_tokens`, for it is
    the stored tail's KV that they hold. There is no splice where they cover all that would be copied.
    """

    prefix_tokens: int
    suffix_tokens: int
    splice: Splice | None = None


class TailReads:
    """
    Decides how each read goes on.

    `engine` names this start of the engine, `jobs` says what each tail was built from. Without a marker
    nothing is matched.
    """

    def __init__(
        self,
        index: SuffixIndex,
        limits: Limits,
        *,
        engine: str,
        jobs: Mapping[int, Job],
        marker: Marker | None,
    ) -> None:
        self.lookups: Counter[Found] = Counter()
        self._index = index
        self._limits = limits
        self._engine = engine
        self._jobs = jobs
        self._marker = marker

    # -- before the admission ---------------------------------------------------------------------------

    def pending(self, track: Track, most: int, computed: int) -> int:
        """
        How many tokens may ride along with the read's splice; 0 when it reads nothing.

        A read that waits has computed none; what the prefix store has of it is known once it was asked. Where
        the middle alone is more than `most`, it is computed in chunks first; what is matched takes the rest.
        """
        if self._live(track) is None or track.hint is None:
            return 0
        middle = max(track.copy_start - max(track.hit, computed), 0)
        return min(middle + track.hint.match, most) if middle <= most else 0

    def open_space(self, track: Track, exact_hit: int) -> Space | None:
        """
        Return the namespace that the read's approximate blocks are looked up and registered in.

        `exact_hit` tokens are in the prefix store as exact ones. None when the request goes on exactly.
        """
        track.space = None
        record = self._live(track)
        if record is not None and not self._covered(track, exact_hit):
            track.space = Space(max(track.exact_end, exact_hit), self._seed(track, record))
        return track.space

    def match(self, track: Track, hit: int, room: Room) -> int | None:
        """Say how many tokens after the first `hit` count as loaded; see `TailPlanner.match`."""
        if not track.reads:
            return 0
        track.course, track.hit, track.begin = Course.ASKED, hit, max(track.copy_start, hit)
        if self._approximate(track) == 0 and self._covered(track, hit):
            track.give_up(Reason.PREFIX_COVERS)
            return 0
        if track.begin >= track.copied_end:
            self._cover(track)
            return 0
        refusal = self._find(track)
        if refusal is not None:
            track.give_up(refusal)
            return 0
        if room.rows_max < OWN_ROWS:
            return self._without_splice(track, Reason.BUSY)
        # Set before the blocks are allocated, for allocation registers full blocks in the prefix store.
        track.register_max = max(track.exact_end, hit)
        if track.begin - hit > room.tokens_max:
            # An anchored tail's head is in no chunk: it rides along whole, or there is no splice.
            if not self._limits.long_middles or track.begin - track.exact_end > room.tokens_max:
                return self._without_splice(track, Reason.MIDDLE_TOO_LONG)
            track.course = Course.CHUNKED
            return 0
        if not self._fits(track, hit, room, own_rows=1):
            track.deferrals += 1
            waits = track.deferrals <= self._limits.deferrals_max
            return None if waits else self._without_splice(track, Reason.BUSY)
        track.course = Course.SPLICE
        return track.copied_end - hit

    # -- the admission ----------------------------------------------------------------------------------

    def admit(self, track: Track, request_id: str, loaded: int) -> Admission | None:
        """Take an admitted read's course; None when nothing but vLLM's own counts is to be told."""
        if track.course is Course.SPLICE and loaded == 0:
            # vLLM takes nothing from anywhere for a request that is told not to read the prefix store.
            track.give_up(Reason.OFF)
        if track.course not in (Course.SPLICE, Course.COVERED):
            return None
        approximate = self._approximate(track)
        splice = None
        if track.course is Course.SPLICE:
            splice = self._splice(track, request_id, track.hit, approximate)
        else:
            self._touch(track)
        return Admission(
            prefix_tokens=track.hit - approximate,
            suffix_tokens=splice.suffix_tokens if splice is not None else approximate,
            splice=splice,
        )

    def resume(self, track: Track, request_id: str, computed: int, room: Room) -> Admission | None:
        """Splice a read that runs, when what is left of its middle fits into the step."""
        if track.course is not Course.CHUNKED:
            return None
        refusal = self._find(track)
        if refusal is not None:
            track.give_up(refusal)
            return None
        left = track.begin - computed
        if left > room.tokens or not self._fits(track, computed, room, own_rows=0):
            # A middle that is not all computed goes on in chunks; behind it there is nothing to do but wait.
            track.deferrals += computed >= track.exact_end
            if track.deferrals > self._limits.deferrals_max:
                track.give_up(Reason.BUSY)
            return None
        track.course = Course.SPLICE
        splice = self._splice(track, request_id, computed, approximate=0)
        return Admission(prefix_tokens=track.hit, suffix_tokens=splice.suffix_tokens, splice=splice)

    def withdraw(self, track: Track, splice: Splice) -> None:
        """The running read got no place in the step: nothing is copied, and it may be asked again."""
        self._index.withdraw(splice.entry)
        self.lookups[Found.LIVE] -= 1
        track.course, track.reason = Course.CHUNKED, Reason.NOT_BUILT

    # -- details ----------------------------------------------------------------------------------------

    def _live(self, track: Track) -> Record | None:
        if not track.reads or track.key is None:
            return None
        lookup = self._look_up(track.key)
        return lookup.record if lookup.found is Found.LIVE else None

    def _look_up(self, key: TailKey) -> Lookup:
        """
        Find a tail; one of another scope is not handed out, whatever the index makes of its key.

        The index compares keys whole, so there is none. Who reads whose text must not hang on that alone.
        """
        lookup = self._index.look_up(key)
        if lookup.record is not None and not lookup.record.key.same_owner(key):
            return Lookup(Found.FOREIGN)
        return lookup

    def _seed(self, track: Track, record: Record) -> bytes:
        """
        Name all that the KV behind the exact part depends on, but for the tokens themselves.

        The entry stands for the tail as it was compared whole: its tokens, epoch, salt, adapter, scaffold
        and correction, and for this one build of it. Matched tokens differ from middle to middle, but the
        namespace is chained over the middle's tokens: the same chain has the same matches.
        """
        assert track.hint is not None and track.key is not None
        hint = track.hint
        parts = (
            self._engine,
            record.entry,
            track.key.lookup,
            sorted(record.variants),
            (hint.prefix_tokens, hint.head, hint.last, hint.match),
        )
        return sha256(_SPACE_DOMAIN + repr(parts).encode("utf-8", "surrogatepass")).digest()

    def _find(self, track: Track) -> Reason | None:
        assert track.key is not None
        lookup = self._look_up(track.key)
        if lookup.found is Found.LIVE and lookup.record is not None:
            track.entry = lookup.record.entry
            return None
        self.lookups[lookup.found] += 1
        return MISSES[lookup.found]

    def _covered(self, track: Track, exact_hit: int) -> bool:
        """Whether the prefix store has so much of the tail exactly that the rest is not worth a copy."""
        left = track.copied_end - exact_hit
        # Exact KV of an anchored tail stands at other positions than the read would have it.
        worthless = left < self._limits.tail_tokens_min or track.shift != 0
        return exact_hit > track.exact_end and worthless

    def _without_splice(self, track: Track, reason: Reason) -> int:
        """Go on without a splice: exactly, or behind the approximate blocks that vLLM found already."""
        if self._approximate(track) == 0:
            track.give_up(reason)
        else:
            self._cover(track)
        return 0

    def _cover(self, track: Track) -> None:
        record = self._live(track)
        assert record is not None, "a namespace is opened for a live tail"
        track.entry = record.entry
        track.course, track.register_max = Course.COVERED, None

    def _approximate(self, track: Track) -> int:
        """How many tokens of the hit come from blocks of the namespace."""
        return max(track.hit - track.space.first, 0) if track.space is not None else 0

    def _touch(self, track: Track) -> None:
        """Count a read that copied nothing, so that its tail is not the next one to be evicted."""
        assert track.entry is not None, "a read is covered when its tail was found"
        self._attach(track, track.entry)
        self._index.release(track.entry)

    def _attach(self, track: Track, entry: int) -> Record:
        """Take a reference on the tail that is read, count the hit, and note whose tail it is."""
        record = self._index.acquire(entry)
        self.lookups[Found.LIVE] += 1
        track.reason, track.owner = Reason.HIT, owner_of(record.key.identity.salt)
        return record

    def _splice(self, track: Track, request_id: str, hit: int, approximate: int) -> Splice:
        assert track.entry is not None, "match found a live tail"
        record, job = self._attach(track, track.entry), self._jobs.get(track.entry)
        ready = sorted(record.variants)
        track.splice = Splice(
            request_id,
            track.entry,
            hit,
            exact=track.begin,
            copied=track.copied_end,
            total=track.total,
            tail=track.tail_start,
            shift=track.shift,
            runs=track.runs or (),
            mix=mix_for(track.tail_start - (len(job.scaffold) if job is not None else 0), ready),
            approximate=approximate,
        )
        return track.splice

    def _fits(self, track: Track, hit: int, room: Room, *, own_rows: int) -> bool:
        runs = self._runs(track, hit, room)
        tokens = track.begin - hit + sum(run.count for run in runs)
        rows = own_rows + (track.begin > hit) + len(runs)
        return tokens <= room.tokens and rows <= room.rows

    def _runs(self, track: Track, hit: int, room: Room) -> tuple[Run, ...]:
        """Find the tail's tokens that the middle points at, once per hit, as far as any step has room."""
        if track.runs is None or track.runs_hit != hit:
            track.runs, track.runs_hit = self._mark(track, hit, room), hit
        return track.runs

    def _mark(self, track: Track, hit: int, room: Room) -> tuple[Run, ...]:
        assert track.hint is not None
        if self._marker is None or track.entry is None or track.hint.match == 0:
            return ()
        runs = self._marker.mark(
            track.entry,
            track.prompt[track.hint.prefix_tokens : track.tail_start],
            first=track.begin - track.tail_start,
            end=track.hint.tail_tokens - max(track.hint.last, 1),
            tokens_max=min(track.hint.match, room.tokens_max - (track.begin - hit)),
        )
        longest = sorted(runs, key=lambda run: -run.count)[: max(room.rows_max - OWN_ROWS, 0)]
        return tuple(sorted(longest, key=lambda run: run.offset))
