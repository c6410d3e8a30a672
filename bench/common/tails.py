"""A fixed tail as an engine sees it: token ids, what it is encoded after, and how it gets built."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from bench.common.engine_api import Engine, Messages, report_of
from sternpost_core.errors import OperatingError
from sternpost_core.hint import Correction, Hint, Operation, Reason

SCAFFOLD_ID: Final = "bench"
"""Each tail is built after one scaffold only, so one name does for all."""

EMPTY: Final = ({"role": "user", "content": ""},)
FILLED: Final = ({"role": "user", "content": "A"},)
"""Two middles, whose renderings begin to differ where a middle stands."""


@dataclass(frozen=True, slots=True)
class Tail:
    """
    Messages that end every prompt, and their token ids.

    `scaffold` are the tokens before them in a build, `insert` says where in it a middle stands.
    `continuing` is True where the last message begins the model's answer.
    """

    name: str
    prefix: Messages
    messages: Messages
    continuing: bool
    scaffold: tuple[int, ...]
    tokens: tuple[int, ...]
    insert: int

    def conversation(self, middle: Messages) -> list[dict[str, str]]:
        """Return a whole prompt as messages."""
        return [dict(message) for message in (*self.prefix, *middle, *self.messages)]

    def read_hint(self, **changes: Any) -> Hint:
        """Return the hint of a request that reads this tail, with the policy's defaults where not changed."""
        hint = Hint(
            op=Operation.READ,
            prefix_tokens=self.insert,
            tail_tokens=len(self.tokens),
            match=0,
            scaffold=SCAFFOLD_ID,
        )
        return replace(hint, **changes)


async def measure_tail(
    engine: Engine, name: str, messages: Messages, *, prefix: Messages = (), continuing: bool = False
) -> Tail:
    """
    Tokenize a tail behind its prefix and an empty user message, as the gateway does.

    Raises:
        OperatingError: the tail's first token merges with what stands before it.
    """
    scaffold = await engine.chat_tokens([*prefix, *EMPTY], answering=False)
    filled = await engine.chat_tokens([*prefix, *FILLED], answering=False)
    whole = await engine.chat_tokens([*prefix, *EMPTY, *messages], continuing=continuing)
    if whole[: len(scaffold)] != scaffold:
        raise OperatingError(f"tail {name}: its tokens do not begin at a message's beginning")
    tail = whole[len(scaffold) :]
    return Tail(name, prefix, messages, continuing, scaffold, tail, common_tokens(scaffold, filled))


def common_tokens(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return how many tokens both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (left, right) in pairs if left != right), min(len(one), len(other)))


async def build_tail(
    engine: Engine, tail: Tail, correction: Correction = Correction.NONE, kind: str = ""
) -> None:
    """
    Have the tail built by the engine's ordinary build operation, where the engine does not hold it already.

    Raises:
        OperatingError: it was not built.
    """
    hint = Hint(
        op=Operation.BUILD,
        prefix_tokens=len(tail.scaffold),
        tail_tokens=len(tail.tokens),
        scaffold=SCAFFOLD_ID,
        correction=correction,
        kind=kind,
        insert=tail.insert,
    )
    answer = await engine.complete(tail.scaffold + tail.tokens, hint, max_tokens=1)
    report = report_of(answer["usage"])
    if report is None or report.reason not in (Reason.BUILT, Reason.HIT):
        raise OperatingError(
            f"tail {tail.name} was not built: {report.reason if report else 'the engine has no plugin'}"
        )
