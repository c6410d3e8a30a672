"""What is sent: chats of an agent in many sessions, in two sizes, each with the policy's prefix and tail."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from bench.gateway.upstream import MODEL

BODIES: Final = 64
"""Of one size, sent in turn: as many conversations."""

SMALL_BYTES: Final = 5 * 1024
LARGE_BYTES: Final = 40 * 1024

TOOLS: Final = 6
SYSTEM_WORDS: Final = 80
TAIL_WORDS: Final = 300
HISTORY_WORDS: Final = 60
"""Of one message between the prefix and the question."""

WORDS: Final = ("ship", "harbour", "mast", "keel", "rudder", "anchor", "sail", "tide", "pilot", "stern")

POLICY: Final = f"""\
apiVersion: sternpost.dev/v1alpha1
kind: CachePolicy
metadata: {{name: agents, namespace: bench}}
spec:
  match: {{models: [{MODEL}]}}
  poolRef: {{name: bench}}
  tenancy:
    isolation: Tenant
    tenantFrom: {{header: x-tenant-id}}
    sessionFrom: {{header: x-session-id}}
  prompt:
    layout: FixedTail
    canonicalize: Pin
    tail: {{source: LastSystemMessage, minTokens: 256}}
    volatile:
      - {{name: clock, detect: Timestamp, action: Relocate}}
  suffixCache:
    recompute: {{head: 0, last: 32, match: 0}}
"""
"""Everything that the gateway does to a prompt is on."""

UNMATCHED_POLICY: Final = POLICY.replace(f"models: [{MODEL}]", "models: [another]")


def bodies(size_bytes: int, *, stream: bool = False) -> list[str]:
    """Return the bodies of about one size; prefix and tail are alike in all, history and question are not."""
    chance = Random(size_bytes)
    tools = [_tool(number) for number in range(TOOLS)]
    system, tail = _text(Random(1), SYSTEM_WORDS), _text(Random(2), TAIL_WORDS)
    return [_body(chance, tools, system, tail, size_bytes, stream=stream) for _ in range(BODIES)]


def write_bodies(folder: Path, name: str, lines: Sequence[str]) -> Path:
    """Write bodies as JSON lines for the load generator."""
    path = folder / f"{name}.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _body(
    chance: Random, tools: Sequence[Any], system: str, tail: str, size_bytes: int, *, stream: bool
) -> str:
    # Tools come in any order, and a clock stands in front: both are what the gateway is there to mend.
    clock = f"Current time: 2026-03-0{chance.randint(1, 9)}T12:{chance.randint(10, 59)}:00Z"
    messages = [{"role": "system", "content": f"{system}\n{clock}"}]
    closing = [
        {"role": "user", "content": f"{_text(chance, 12)} {chance.randrange(10**9)}?"},
        {"role": "system", "content": tail},
    ]
    fields = {"model": MODEL, "tools": chance.sample(tools, len(tools)), "max_tokens": 16, "stream": stream}
    while True:
        text = json.dumps({**fields, "messages": [*messages, *closing]})
        if len(text) >= size_bytes:
            return text
        role = "user" if len(messages) % 2 else "assistant"
        words = min(HISTORY_WORDS, max(1, (size_bytes - len(text)) // 7))
        messages.append({"role": role, "content": _text(chance, words)})


def _tool(number: int) -> dict[str, Any]:
    properties = {name: {"type": "string", "description": name.upper()} for name in WORDS[:2]}
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    function = {"name": f"tool_{number}", "description": f"Does {number}.", "parameters": parameters}
    return {"type": "function", "function": function}


def _text(chance: Random, words: int) -> str:
    return " ".join(chance.choices(WORDS, k=words))
