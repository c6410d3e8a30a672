"""
What replays say about each tail, and which tails are read no more for it.

A tail is demoted by itself when its replays disagree, or diverge, by more than its policy allows; its
requests then take the exact path. A demotion outlives restarts. It ends when what was judged is gone: when
the policy's suffix cache or limits change, or its epoch.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from sternpost_core.clock import Clock
from sternpost_core.content import ContentId, content_id, short
from sternpost_core.errors import OperatingError
from sternpost_core.policy import Policy
from sternpost_core.policy_write import to_mapping
from sternpost_gateway.bounded import Bounded
from sternpost_gateway.shadow.change_detector import ChangeDetector
from sternpost_gateway.shadow.comparison import Comparison
from sternpost_gateway.state_files import read_json, write_file

logger = logging.getLogger(__name__)

DEMOTION_FILE: Final = "demotions.json"
DEMOTION_VERSION: Final = 1

TAILS_MAX: Final = 512
"""Tails whose replays are remembered, those replayed last."""

DEMOTIONS_MAX: Final = 1024
"""Tails that are demoted at once, those asked for last."""


@dataclass(frozen=True, slots=True)
class TailVersion:
    """A tail as people know it: one content for one policy and model, whatever stands before it."""

    policy: str
    model: str
    tail_id: ContentId


@dataclass(frozen=True, slots=True, kw_only=True)
class Demotion:
    """
    A tail that is read no more, what was judged, and by what: means over so many replays.

    `divergence` is in nats per token, `at` in Unix seconds.
    """

    tail: TailVersion
    basis: ContentId
    at: float
    replays: int
    agreement: float
    divergence: float


@dataclass(slots=True)
class _Record:
    basis: ContentId
    disagreement: ChangeDetector
    divergence: ChangeDetector
    replays: int = 0
    tokens: int = 0
    agreed: int = 0
    nats: float = 0.0


OnDemotion = Callable[[Demotion], None]


class Verdicts:
    """
    Keeps the tests of tails, and the demotions.

    `state` is the directory of the demotion file, if there is one; `on_demotion` is told about each new one.
    """

    def __init__(
        self, clock: Clock, state: Path | None, on_demotion: OnDemotion = lambda demotion: None
    ) -> None:
        self._clock = clock
        self._file = state / DEMOTION_FILE if state else None
        self._on_demotion = on_demotion
        self._records: Bounded[TailVersion, _Record] = Bounded(TAILS_MAX)
        self._demotions: Bounded[TailVersion, Demotion] = Bounded(DEMOTIONS_MAX)
        self._restore()

    def is_demoted(self, tail: TailVersion, policy: Policy, epoch: int) -> bool:
        """Say whether a tail is read no more; a demotion of what is gone by now ends here."""
        demotion = self._demotions.get(tail)
        if demotion is None:
            return False
        if demotion.basis == basis_of(policy, epoch):
            return True
        self._demotions.drop(tail)
        logger.warning(
            "tail %s of %s is read again: policy or epoch changed", short(tail.tail_id), tail.policy
        )
        self._store()
        return False

    def observe(self, tail: TailVersion, policy: Policy, epoch: int, comparison: Comparison) -> None:
        """Take what one replay says about a tail, and demote it if that is enough."""
        record = self._record(tail, policy, basis_of(policy, epoch))
        record.replays += 1
        record.tokens += comparison.tokens
        record.agreed += comparison.agreed
        record.nats += comparison.nats
        record.disagreement.observe(comparison.disagreement)
        record.divergence.observe(comparison.divergence)
        if record.disagreement.has_changed or record.divergence.has_changed:
            self._demote(tail, record)

    def policies(self) -> tuple[str, ...]:
        """Return the policies that replays have said something about, by name."""
        tails = [tail for tail, _ in self._records.items()] + [tail for tail, _ in self._demotions.items()]
        return tuple(sorted({tail.policy for tail in tails}))

    def demoted(self, policy: str) -> int:
        """Return how many tails of a policy are demoted."""
        return sum(tail.policy == policy for tail, _ in self._demotions.items())

    def shown(self, policy: str) -> list[dict[str, Any]]:
        """Return what people see of a policy's tails: those that are being tested, then those demoted."""
        tested = [
            _shown(tail, record.replays, record.agreed / record.tokens, record.nats / record.tokens, None)
            for tail, record in self._records.items()
            if tail.policy == policy
        ]
        demoted = [
            _shown(tail, found.replays, found.agreement, found.divergence, found.at)
            for tail, found in self._demotions.items()
            if tail.policy == policy
        ]
        return tested + demoted

    def _record(self, tail: TailVersion, policy: Policy, basis: ContentId) -> _Record:
        record = self._records.get(tail)
        if record is None or record.basis != basis:
            analysis = policy.rollout.analysis
            disagreement = ChangeDetector(1.0 - analysis.min_shadow_agreement)
            record = _Record(basis, disagreement, ChangeDetector(analysis.max_shadow_kl))
            self._records.put(tail, record)
        return record

    def _demote(self, tail: TailVersion, record: _Record) -> None:
        demotion = Demotion(
            tail=tail,
            basis=record.basis,
            at=self._clock.time(),
            replays=record.replays,
            agreement=record.agreed / record.tokens,
            divergence=record.nats / record.tokens,
        )
        self._records.drop(tail)
        self._demotions.put(tail, demotion)
        logger.error(
            "tail %s of %s is read no more: agreement %.3f, divergence %.3f nats a token in %d replays",
            short(tail.tail_id),
            tail.policy,
            demotion.agreement,
            demotion.divergence,
            demotion.replays,
        )
        self._on_demotion(demotion)
        self._store()

    def _store(self) -> None:
        if self._file is None:
            return
        demotions = [asdict(demotion) for demotion in self._demotions.values()]
        try:
            write_file(self._file, json.dumps({"v": DEMOTION_VERSION, "demotions": demotions}).encode())
        except OperatingError as error:
            # The demotion itself counts; only a restart would not know of it.
            logger.error("the demotions would not survive a restart: %s", error)

    def _restore(self) -> None:
        try:
            state = read_json(self._file) if self._file else None
            demotions = [] if state is None else _read_state(state)
        except OperatingError as error:
            logger.error("%s; tails begin without a demotion", error)
            return
        for demotion in demotions:
            self._demotions.put(demotion.tail, demotion)


def basis_of(policy: Policy, epoch: int) -> ContentId:
    """Return the id of what replays judge: how tails are stored and read, the limits, and the epoch."""
    analysis = policy.rollout.analysis
    suffix_cache = to_mapping(policy)["spec"].get("suffixCache")
    limits = (analysis.min_shadow_agreement, analysis.max_shadow_kl)
    judged = json.dumps([suffix_cache, limits, epoch], sort_keys=True)
    return content_id("shadow basis", [("judged", judged.encode())])


def _shown(
    tail: TailVersion, replays: int, agreement: float, divergence: float, at: float | None
) -> dict[str, Any]:
    return {
        "tail": tail.tail_id,
        "model": tail.model,
        "replays": replays,
        "agreement": round(agreement, 4),
        "klNats": round(divergence, 4),
        "demotedAt": at,
    }


def _read_state(state: Mapping[str, Any]) -> list[Demotion]:
    try:
        if state["v"] != DEMOTION_VERSION:
            raise ValueError("another version")
        return [_read_demotion(item) for item in state["demotions"][:DEMOTIONS_MAX]]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise OperatingError(f"{DEMOTION_FILE} does not hold demotions: {type(error).__name__}") from error


def _read_demotion(item: Mapping[str, Any]) -> Demotion:
    tail = item["tail"]
    return Demotion(
        tail=TailVersion(str(tail["policy"]), str(tail["model"]), ContentId(str(tail["tail_id"]))),
        basis=ContentId(str(item["basis"])),
        at=float(item["at"]),
        replays=int(item["replays"]),
        agreement=float(item["agreement"]),
        divergence=float(item["divergence"]),
    )
