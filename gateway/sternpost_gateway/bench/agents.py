"""
Requests of agents, made up from a seed: the same seed gives the same bytes everywhere.

Every request has a clock and a request id among its rules, tools in an order of its own with their members in
an order of their own, a question that nobody else asks, and closing rules that are always the same.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

START: Final = datetime(2026, 3, 2, 8, 0, 0, tzinfo=UTC)
SECONDS_BETWEEN: Final = 7
TURNS_MAX: Final = 3

PLACES: Final = (
    "Bergen",
    "Cadiz",
    "Dover",
    "Esbjerg",
    "Gdansk",
    "Hull",
    "Lisbon",
    "Malmo",
    "Narvik",
    "Split",
)
CARGOES: Final = ("timber", "salt", "rope", "tar", "wool", "copper", "grain", "tea", "coffee", "glass")
VERBS: Final = ("load", "unload", "weigh", "insure", "repack", "inspect", "delay", "reroute")

OPENING_RULES: Final = """You are the harbour master's assistant. You plan berths, cargo and tides.
Speak plainly. Give distances in nautical miles and weights in tonnes.
Never promise a berth before the tide table has been read.
A ship with dangerous goods gets a berth of its own, away from the grain silos.
If two ships want one berth, the one with perishable cargo goes first.
When the wind is above seven, no ship leaves, whatever its captain says."""

CLOSING_RULES: Final = """Before you answer, go through these rules once more, in this order.
First, name the ship, the berth and the hour, each on a line of its own.
Second, if a tool's result contradicts what the captain says, the tool is right.
Third, never invent a tide: where the table has no entry, say that it has none.
Fourth, state every weight twice, in tonnes and in long tons, rounded to one decimal.
Fifth, dangerous goods are named by their class and number, never by a trade name.
Sixth, do not speak of other captains, their ships, their cargo or their debts.
Seventh, an answer has no more than twelve lines, no headings and no tables.
Eighth, if the question is about anything but the harbour, say that this is not your business.
Ninth, prices are in the currency of the port, and the day of the rate stands beside them.
Tenth, where a rule of the port forbids what is asked, quote the rule by its number.
Eleventh, if you need a tool, call one tool only, and wait for its result.
Twelfth, times are those of the port, in four digits, and tides are given to the tenth of a metre.
Thirteenth, a ship that is not in the register gets no berth, no cargo and no answer but this rule.
Fourteenth, close with the line END OF WATCH, and with nothing behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What breaks the cache about the requests."""

    clock: bool = True
    nonce: bool = True
    tool_order: bool = True
    key_order: bool = True
    tail: bool = True


ALL_FAULTS: Final = Faults()


def agent_bodies(count: int, seed: int, faults: Faults = ALL_FAULTS, model: str = "agent") -> Iterator[bytes]:
    """Yield the bodies of `count` chat requests, in the order in which they come."""
    chance = random.Random(seed)
    made = 0
    while made < count:
        messages: list[dict[str, str]] = []
        session = f"s-{chance.getrandbits(48):012x}"
        for _ in range(min(chance.randint(1, TURNS_MAX), count - made)):
            messages.append({"role": "user", "content": _question(chance)})
            yield _body(chance, made, session, messages, faults, model)
            messages.append({"role": "assistant", "content": _answer(chance)})
            made += 1


def _body(
    chance: random.Random,
    number: int,
    session: str,
    messages: list[dict[str, str]],
    faults: Faults,
    model: str,
) -> bytes:
    opening = {"role": "system", "content": _opening(chance, number, faults)}
    closing = [{"role": "system", "content": CLOSING_RULES}] if faults.tail else []
    body = {
        "model": model,
        "max_tokens": 1,
        "temperature": 0,
        "prompt_cache_key": session,
        "messages": [opening, *messages, *closing],
        "tools": _tools(chance, faults),
    }
    return json.dumps(body).encode()


def _opening(chance: random.Random, number: int, faults: Faults) -> str:
    lines = OPENING_RULES.split("\n")
    if faults.nonce:
        lines.insert(2, f"Request id: req-{chance.getrandbits(64):016x}")
    if faults.clock:
        now = START + timedelta(seconds=SECONDS_BETWEEN * number)
        lines.insert(1, f"Now: {now:%Y-%m-%d %H:%M:%S}")
    return "\n".join(lines)


def _question(chance: random.Random) -> str:
    cargo = f"{chance.randint(2, 900)} tonnes of {chance.choice(CARGOES)}"
    return (
        f"Please {chance.choice(VERBS)} {cargo} for the ship number {chance.randint(1000, 9999)}"
        f" from {chance.choice(PLACES)}, bound for {chance.choice(PLACES)}."
    )


def _answer(chance: random.Random) -> str:
    return (
        f"Ship {chance.randint(1000, 9999)}\nBerth {chance.randint(1, 40)}\nHour {chance.randint(0, 23)}\n"
        "END OF WATCH"
    )


def _tools(chance: random.Random, faults: Faults) -> list[dict[str, Any]]:
    tools = [
        _tool("find_berth", "Find a free berth for a ship.", "ship", "hour"),
        _tool("read_tides", "Read the tide table of a day.", "day", "place"),
        _tool("weigh_cargo", "Ask for the weight of a cargo.", "cargo", "ship"),
    ]
    if faults.key_order:
        tools = [_shuffled(chance, tool) for tool in tools]
    if faults.tool_order:
        chance.shuffle(tools)
    return tools


def _tool(name: str, description: str, *fields: str) -> dict[str, Any]:
    properties = {field: {"type": "string"} for field in fields}
    parameters = {"type": "object", "properties": properties, "required": list(fields)}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def _shuffled(chance: random.Random, tool: dict[str, Any]) -> dict[str, Any]:
    """Return a tool with the members of its function and of its schema in an order of chance."""
    function = tool["function"]
    schema = _in_any_order(chance, function["parameters"])
    return {"type": tool["type"], "function": _in_any_order(chance, {**function, "parameters": schema})}


def _in_any_order(chance: random.Random, mapping: dict[str, Any]) -> dict[str, Any]:
    items = list(mapping.items())
    chance.shuffle(items)
    return dict(items)
