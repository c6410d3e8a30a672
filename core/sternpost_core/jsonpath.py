"""
Where in a JSON text a position stands, as a path such as `messages[0].content`.

Only for error messages, so it is simple rather than fast, and it copes with text that is not JSON. A path
shows the API's own field names and `*` for every other key: a client's keys may be private.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

TOP: Final = "body"
"""The path of the top level."""

STEPS_MAX: Final = 8
"""How many steps of a path are shown."""

KNOWN_KEYS: Final = frozenset(
    [
        "arguments",
        "cache_salt",
        "chat_template_kwargs",
        "content",
        "description",
        "function",
        "functions",
        "id",
        "image_url",
        "input",
        "instructions",
        "json_schema",
        "kv_transfer_params",
        "logit_bias",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "metadata",
        "model",
        "n",
        "name",
        "parameters",
        "prefix_cache",
        "prompt",
        "prompt_cache_key",
        "properties",
        "reasoning",
        "reasoning_content",
        "refusal",
        "required",
        "response_format",
        "role",
        "schema",
        "seed",
        "stop",
        "stream",
        "stream_options",
        "temperature",
        "text",
        "tool_call_id",
        "tool_calls",
        "tool_choice",
        "tools",
        "top_k",
        "top_p",
        "type",
        "url",
        "user",
    ]
)
"""The keys that a path may show."""

TOKENS_MAX: Final = 200_000
"""How many tokens are looked at, about 0.1 s of work; past them the path is that of the top level."""

CONSTANTS: Final = frozenset({"NaN", "Infinity", "-Infinity"})
"""What Python reads as a number and JSON does not have."""

_TOKEN: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[{}\[\],:]|[^"{}\[\],:]+', re.DOTALL)


@dataclass(slots=True)
class _Frame:
    """One open array or object: the current index, or the current key as it was written."""

    is_object: bool
    index: int = 0
    key: str | None = None
    seen: set[str] = field(default_factory=set)


def path_at(text: str, position: int) -> str:
    """Return the path of the value or key that `position` is in."""
    return _first(text, lambda start, token, _: start + len(token) > position)


def too_deep_path(text: str, depth_max: int) -> str:
    """Return the path of the first array or object that is nested deeper than `depth_max`."""
    return _first(text, lambda _, token, frames: token in ("{", "[") and len(frames) >= depth_max)


def constant_path(text: str) -> str:
    """Return the path of the first NaN, Infinity or -Infinity."""
    return _first(text, lambda _, token, __: token.strip() in CONSTANTS)


def long_integer_path(text: str, digits_max: int) -> str:
    """Return the path of the first integer of more than `digits_max` digits."""

    def is_long_integer(_: int, token: str, __: Sequence[_Frame]) -> bool:
        digits = token.strip().removeprefix("-")
        return len(digits) > digits_max and digits.isdigit()

    return _first(text, is_long_integer)


def duplicate_path(text: str) -> str:
    """Return the path of the first key, in the order of the text, that its object has already."""
    string = ""

    def is_duplicate(_: int, token: str, frames: Sequence[_Frame]) -> bool:
        nonlocal string
        if token.startswith('"'):
            string = token
        if token != ":" or not frames:
            return False
        key = json.loads(string)
        known = key in frames[-1].seen
        frames[-1].seen.add(key)
        return known

    return _first(text, is_duplicate)


def _first(text: str, stop: Callable[[int, str, Sequence[_Frame]], bool]) -> str:
    """Return the path before the first token (start, token, open frames) at which `stop` is true."""
    frames: list[_Frame] = []
    for count, match in enumerate(_TOKEN.finditer(text)):
        if count == TOKENS_MAX:
            return TOP
        if stop(match.start(), match.group(), frames):
            break
        _advance(frames, match.group())
    return _render(frames)


def _advance(frames: list[_Frame], token: str) -> None:
    """Take one token into account; a comma ends a key's reach, so that the next key starts without one."""
    if token in ("{", "["):
        frames.append(_Frame(is_object=token == "{"))
    elif not frames:
        return
    elif token in ("}", "]"):
        frames.pop()
    elif token == ",":
        frames[-1].index += 1
        frames[-1].key = None
    elif token.startswith('"') and frames[-1].is_object and frames[-1].key is None:
        frames[-1].key = token[1:-1]


def _render(frames: list[_Frame]) -> str:
    steps = [_step(frame) for frame in frames[:STEPS_MAX]]
    path = "".join(steps).lstrip(".") or TOP
    return path + "..." if len(frames) > STEPS_MAX else path


def _step(frame: _Frame) -> str:
    if not frame.is_object:
        return f"[{frame.index}]"
    if frame.key is None:
        return ""
    return f".{frame.key}" if frame.key in KNOWN_KEYS else ".*"
