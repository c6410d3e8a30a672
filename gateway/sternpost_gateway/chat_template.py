"""
What an engine's chat template does, asked of the engine once for each model, never guessed.

The engine renders made-up conversations with `/tokenize`; comparing the tokens tells whether the template
takes a system message behind the first one, and whether it prints the ids of tool calls.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sternpost_core.clock import Clock
from sternpost_gateway.background import BackgroundWork
from sternpost_gateway.bounded import Bounded
from sternpost_gateway.engine_api import ControlFailed, ControlRefused, EngineApi
from sternpost_gateway.fleet import Engine
from sternpost_gateway.tokens import FIRST_TEXT, SECOND_TEXT

logger = logging.getLogger(__name__)

MODELS_MAX: Final = 256
"""Models whose templates are known."""

ASKING_MAX: Final = 4
"""Models that are asked about at once."""

FAILED_SECONDS: Final = 60.0
"""For which nobody asks again after an engine did not answer."""

SYSTEM: Final = {"role": "system", "content": "Be kind."}
USER: Final = {"role": "user", "content": FIRST_TEXT}
TEXTS: Final = (FIRST_TEXT, SECOND_TEXT)

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """
    What a model's chat template does.

    `takes_later_system`: a second system message is rendered behind the first, which keeps its tokens.
    `prints_call_ids` is None where the template refuses tool calls.
    """

    takes_later_system: bool
    prints_call_ids: bool | None


NOT_KNOWN: Final = ChatTemplate(takes_later_system=False, prints_call_ids=None)
"""What is taken for true of a template until it is known."""


class ChatTemplates:
    """The chat templates of all models; asking happens in the background."""

    def __init__(self, api: EngineApi, clock: Clock, models_max: int = MODELS_MAX) -> None:
        self._api = api
        self._clock = clock
        self._known: Bounded[str, ChatTemplate] = Bounded(models_max)
        self._not_before: Bounded[str, float] = Bounded(models_max)
        self._asking: set[str] = set()
        self._work = BackgroundWork()

    def of(self, model: str | None) -> ChatTemplate:
        """Return what is known of a model's template."""
        return (self._known.get(model) if model is not None else None) or NOT_KNOWN

    def known(self) -> tuple[tuple[str, ChatTemplate], ...]:
        """Return what is known, by model."""
        return self._known.items()

    def want(self, engine: Engine, model: str | None) -> None:
        """Have an engine asked about a model's template, unless it is known, or somebody asks or just has."""
        if model is None or model in self._asking or len(self._asking) >= ASKING_MAX:
            return
        is_early = self._clock.monotonic() < (self._not_before.get(model) or 0.0)
        if self._known.get(model) is None and not is_early:
            self._asking.add(model)
            self._work.start(self._ask(engine, model))

    async def idle(self) -> None:
        """Wait until nobody is asked."""
        await self._work.idle()

    async def close(self) -> None:
        """Stop asking."""
        await self._work.close()

    async def _ask(self, engine: Engine, model: str) -> None:
        try:
            template = await self._probe(engine, model)
        except ControlFailed as error:
            self._not_before.put(model, self._clock.monotonic() + FAILED_SECONDS)
            logger.warning("the chat template of a model is not known: %s", error)
        else:
            self._known.put(model, template)
            logger.info(
                "chat template asked for: takes a later system message: %s, prints ids of tool calls: %s",
                template.takes_later_system,
                template.prints_call_ids,
            )
        finally:
            self._asking.discard(model)

    async def _probe(self, engine: Engine, model: str) -> ChatTemplate:
        opening = await self._render(engine, model, [SYSTEM], prompt=False)
        later = [await self._render(engine, model, with_later_system(text)) for text in TEXTS]
        calls = [await self._render(engine, model, with_call(name)) for name in TEXTS]
        return ChatTemplate(
            takes_later_system=takes_later_system(opening, later),
            prints_call_ids=None if None in calls else calls[0] != calls[1],
        )

    async def _render(
        self, engine: Engine, model: str, messages: Sequence[Message], *, prompt: bool = True
    ) -> tuple[int, ...] | None:
        """Return a conversation's tokens, None where the template refuses it."""
        fields = {"model": model, "messages": messages, "add_generation_prompt": prompt}
        try:
            return await self._api.tokenize(engine, json.dumps(fields).encode())
        except ControlRefused:
            return None


def with_later_system(text: str) -> list[Message]:
    """Return a conversation with a second system message."""
    return [SYSTEM, {"role": "system", "content": text}, USER]


def with_call(name: str) -> list[Message]:
    """Return a conversation with a tool call of this id."""
    function = {"name": "look", "arguments": "{}"}
    call = {"id": name, "type": "function", "function": function}
    return [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": name, "content": FIRST_TEXT},
        USER,
    ]


def takes_later_system(opening: Sequence[int] | None, later: Sequence[Sequence[int] | None]) -> bool:
    """Say whether both later messages were rendered, each in its own words, behind an unchanged opening."""
    first, second = later
    if opening is None or first is None or second is None:
        return False
    length = len(opening)
    return first != second and list(first[:length]) == list(opening) == list(second[:length])
