"""
Finding out tails' tokens and having tails built, in the background.

The hot path only says what it would have liked (`want`); it never waits. What cannot be done now is not
queued: the next request for the same tail asks again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from sternpost_core.content import ContentId, short
from sternpost_core.hint import Correction, Hint, Mode, Operation, Reason
from sternpost_gateway.background import BackgroundWork
from sternpost_gateway.bypass import Bypass
from sternpost_gateway.engine_api import ControlFailed, ControlRefused, EngineApi
from sternpost_gateway.fleet import Engine, Fleet
from sternpost_gateway.metrics import Metrics
from sternpost_gateway.prefill_budget import PrefillBudget
from sternpost_gateway.recurrence import Recurrence
from sternpost_gateway.tails import TailKey, Tails
from sternpost_gateway.tokens import (
    EMPTY_TEXT,
    FIRST_TEXT,
    SECOND_TEXT,
    Renderings,
    TailFacts,
    Template,
    tail_facts,
    tokenize_body,
)

logger = logging.getLogger(__name__)

LEARNING_MAX: Final = 8
"""Templates whose tokens are found out at once."""

REFUSED_SECONDS: Final = 600.0
"""For which a refusal, or an unstable tail, is remembered: a template changes with an engine's start only."""

OVER_BUDGET: Final = "over_budget"
"""The outcome of a build that has to wait for its turn."""

FAILED_SECONDS: Final = 10.0
"""For which a failure of the call itself is remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A tail that a request would have liked to find; `mode`, `anchor` and `correction` are the policy's."""

    template: Template
    key: TailKey
    tokens_min: int
    mode: Mode = Mode.ROTATE
    anchor: int = 0
    correction: Correction = Correction.NONE


class TailBuilder:
    """Runs at most one build per engine, and at most `LEARNING_MAX` tokenizations, at a time."""

    def __init__(
        self, api: EngineApi, tails: Tails, metrics: Metrics, budget: PrefillBudget, fleet: Fleet
    ) -> None:
        self._api = api
        self._tails = tails
        self._metrics = metrics
        self._budget = budget
        self._fleet = fleet
        self._learning: set[ContentId] = set()
        self._building: set[Engine] = set()
        self._recurrence = Recurrence()
        self._work = BackgroundWork()

    def want(self, engine: Engine, wish: Wish) -> None:
        """Start what is missing for the tail on the engine, unless it is under way or was tried just now."""
        if not self._recurrence.is_expected(wish.key.policy, wish.template.template_id):
            return
        facts = self._tails.facts(wish.template.template_id)
        if isinstance(facts, TailFacts):
            self._start_build(engine, wish, facts)
        elif facts is None:
            self._start_learning(engine, wish)

    async def idle(self) -> None:
        """Wait until nothing is under way."""
        await self._work.idle()

    async def close(self) -> None:
        """Stop everything that is under way."""
        await self._work.close()

    def _start_learning(self, engine: Engine, wish: Wish) -> None:
        template_id = wish.template.template_id
        if template_id not in self._learning and len(self._learning) < LEARNING_MAX:
            self._learning.add(template_id)
            self._work.start(self._learn(engine, wish))

    def _start_build(self, engine: Engine, wish: Wish, facts: TailFacts) -> None:
        if engine in self._building or len(facts.tail) < wish.tokens_min:
            return
        if not self._tails.may_build(engine, wish.key):
            return
        if not self._budget.take(build_tokens(facts)):
            self._metrics.builds.labels(wish.key.policy, OVER_BUDGET).inc()
        elif self._tails.begin_build(engine, wish.key):
            self._building.add(engine)
            self._work.start(self._build(engine, wish, facts))

    async def _learn(self, engine: Engine, wish: Wish) -> None:
        template_id = wish.template.template_id
        try:
            facts = tail_facts(await self._render(engine, wish.template))
        except ControlRefused as error:
            self._refuse(template_id, Bypass.TAIL_REFUSED, REFUSED_SECONDS, str(error))
        except ControlFailed as error:
            self._refuse(template_id, Bypass.TAIL_UNKNOWN, FAILED_SECONDS, str(error))
        else:
            if facts is None:
                self._refuse(template_id, Bypass.TAIL_UNSTABLE, REFUSED_SECONDS, "no common tail tokens")
                return
            self._metrics.templates.labels("learned").inc()
            self._tails.learn(template_id, facts)
            self._start_build(engine, wish, facts)
        finally:
            self._learning.discard(template_id)

    async def _render(self, engine: Engine, template: Template) -> Renderings:
        bodies = (
            tokenize_body(template, EMPTY_TEXT, with_tail=False),
            tokenize_body(template, EMPTY_TEXT, with_tail=True),
            tokenize_body(template, FIRST_TEXT, with_tail=True),
            tokenize_body(template, SECOND_TEXT, with_tail=True),
        )
        return Renderings(*[await self._api.tokenize(engine, body) for body in bodies])

    def _refuse(self, template_id: ContentId, reason: Bypass, seconds: float, why: str) -> None:
        self._metrics.templates.labels(reason.value).inc()
        self._tails.refuse(template_id, reason, seconds)
        logger.warning("tail of template %s bypassed (%s): %s", short(template_id), reason.value, why)

    async def _build(self, engine: Engine, wish: Wish, facts: TailFacts) -> None:
        outcome = "failed"
        try:
            # While it lasts, a build loads its engine like any prompt.
            with self._fleet.flight(engine, build_tokens(facts)) as flight:
                flight.sent()
                report = await self._api.build(
                    engine, wish.template.model, wish.key, facts, build_hint(wish, facts)
                )
            outcome = report.reason.value
            if self._fleet.reported(engine, report.engine) and report.reason is Reason.BUILT:
                # The engine has started anew, and what it holds is this tail.
                self._tails.hit(engine, wish.key)
        except (ControlRefused, ControlFailed) as error:
            logger.warning("build of template %s failed: %s", short(wish.template.template_id), error)
        finally:
            self._building.discard(engine)
            self._tails.end_build(engine, wish.key, built=outcome == Reason.BUILT.value)
        self._metrics.builds.labels(wish.key.policy, outcome).inc()


def build_tokens(facts: TailFacts) -> int:
    """Return how many tokens a build computes, without what a calibration adds."""
    return len(facts.scaffold) + len(facts.tail)


def build_hint(wish: Wish, facts: TailFacts) -> Hint:
    """
    Return the hint of a build: its prompt is scaffold + tail, so the scaffold is the prefix.

    A middle would stand where the renderings of two made-up messages begin to differ.
    """
    return Hint(
        op=Operation.BUILD,
        prefix_tokens=len(facts.scaffold),
        tail_tokens=len(facts.tail),
        epoch=wish.key.epoch,
        mode=wish.mode,
        anchor=wish.anchor,
        scaffold=facts.scaffold_id,
        correction=wish.correction,
        insert=min(facts.prefix_tokens, len(facts.scaffold)),
    )
