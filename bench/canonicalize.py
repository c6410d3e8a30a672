"""Print how long canonicalizing a chat of 40 KB takes, as medians: `python -m bench.canonicalize`."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from typing import Any, Final

from bench.jsonspan import PARAGRAPH
from sternpost_core.jsonspan import scan
from sternpost_core.policy import Canonicalize, Detector, Policy, Prompt, VolatileAction, VolatileRule
from sternpost_gateway.canonicalize import canonicalize
from sternpost_gateway.identify import Identified
from sternpost_gateway.receive import CHAT_PATH, Received
from sternpost_gateway.tool_pins import ToolPins
from sternpost_gateway.volatile import VolatileLines

REPEATS: Final = 500
TOOLS: Final = 20
SYSTEM_CHARS: Final = 16_000
HISTORY_CHARS: Final = 12_000
MESSAGE_CHARS: Final = 1_000

RULES: Final = (
    VolatileRule(name="clock", detect=Detector.TIMESTAMP, action=VolatileAction.RELOCATE),
    VolatileRule(name="ticket", pattern="^Ticket: [A-Z]+-[0-9]+$", action=VolatileAction.RELOCATE),
)
POLICY: Final = Policy(
    name="bench", pool="bench", prompt=Prompt(canonicalize=Canonicalize.PIN, volatile=RULES)
)


def main() -> None:
    """Print one line for each kind of request; the clock of those that have one is never the same twice."""
    print(f"{'requests':>24} {'bytes':>7} {'canonicalize ms':>16}")
    for name, clock, reorder in (
        ("all the same", False, False),
        ("a clock in front", True, False),
        ("tools in another order", False, True),
        ("both", True, True),
    ):
        bodies = list(chat_bodies(clock=clock, reorder=reorder))
        print(f"{name:>24} {len(bodies[-1]):7} {median_ms(bodies):16.3f}")


def chat_bodies(*, clock: bool, reorder: bool) -> Iterator[bytes]:
    """Yield the bodies of requests that follow one another."""
    tools = [tool(number) for number in range(TOOLS)]
    for second in range(REPEATS):
        now = (
            f"Now: 2026-01-01 {second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}\n" if clock else ""
        )
        turn = second % TOOLS if reorder else 0
        body = {
            "model": "example",
            "messages": [message("system", SYSTEM_CHARS, now), *history()],
            "tools": tools[turn:] + tools[:turn],
        }
        yield json.dumps(body).encode()


def history() -> list[dict[str, Any]]:
    """Return the messages of user and assistant."""
    return [message("user", MESSAGE_CHARS, ""), message("assistant", MESSAGE_CHARS, "")] * (
        HISTORY_CHARS // MESSAGE_CHARS // 2
    )


def message(role: str, length: int, opening: str) -> dict[str, Any]:
    """Return a message of so many characters."""
    return {"role": role, "content": opening + (PARAGRAPH * (length // len(PARAGRAPH) + 1))[:length]}


def tool(number: int) -> dict[str, Any]:
    """Return one of several tools."""
    properties = {name: {"type": "string", "description": PARAGRAPH} for name in ("path", "text", "mode")}
    return {
        "type": "function",
        "function": {
            "name": f"tool_{number:02}",
            "description": PARAGRAPH * 3,
            "parameters": {"type": "object", "properties": properties, "required": ["path", "text"]},
        },
    }


def median_ms(bodies: list[bytes]) -> float:
    """Return the median milliseconds of canonicalizing, which includes scanning a changed body again."""
    pins, lines = ToolPins(), VolatileLines()
    durations: list[float] = []
    for identified in map(identified_as, bodies):
        start = time.perf_counter()
        canonicalize(identified, pins, lines)
        durations.append(time.perf_counter() - start)
    return statistics.median(durations) * 1000


def identified_as(body: bytes) -> Identified:
    """Return a chat request of the bench's policy."""
    received = Received(
        method="POST",
        path=CHAT_PATH,
        target=CHAT_PATH,
        headers=(),
        request_id="bench",
        arrived=0.0,
        has_body=False,
        document=scan(body),
    )
    return Identified(received=received, policy=POLICY)


if __name__ == "__main__":
    main()
