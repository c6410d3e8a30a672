"""
The prompt that an engine makes of a body, as tokens.

With a model's own chat template it is the very prompt, as far as the text goes: images and sound are not
counted. Without, tools and messages follow one another, which is near enough to see where prompts part.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from sternpost_core.jsonspan import Document, elements, value
from sternpost_gateway.chat_template import (
    NOT_KNOWN,
    SYSTEM,
    TEXTS,
    takes_later_system,
    with_later_system,
)
from sternpost_gateway.dialogue import LISTED
from sternpost_gateway.lint.encoders import TOKEN_BYTES, Encoder, FunctionEncoder, RememberingEncoder, pack
from sternpost_gateway.lint.model_tokenizer import ModelTokenizer, TemplateRefusal

RENDERED: Final = ("tools", "instructions", "prompt", "input", "messages")
"""The members that a prompt is made of, in the order in which it is rendered without a template."""

FUNCTION_KEYS: Final = ("name", "description", "parameters", "strict")
"""The order in which vLLM hands a tool's members to the template, whatever the order that they came in."""

SPLIT_PROBES: Final = ("Hello\n", " 7 words", "\n\nx", "a ", "")
"""Texts that tell whether a tokenizer takes what is between two special tokens for itself."""


class Unrenderable(Exception):
    """The template refuses a conversation, as an engine would."""


class Prompts(Protocol):
    """
    Renders bodies; `label` says by what, for the report.

    `takes_later_system`: a system message behind the first is rendered behind it, as the gateway finds out by
    asking the engine.
    """

    label: str
    takes_later_system: bool

    def tokens(self, document: Document) -> bytes:
        """
        Return the tokens of a body's prompt.

        Raises:
            Unrenderable: an engine would refuse it.
        """

    def tail_tokens(self, document: Document) -> int:
        """Return how many tokens the last message takes, with all that follows it."""


class PlainPrompts:
    """Renders without a template: each message is a line with its role, and its content."""

    # As the gateway has it of a template that it does not know.
    takes_later_system = NOT_KNOWN.takes_later_system

    def __init__(self, encoder: Encoder) -> None:
        self.label = encoder.label
        self._encoder = RememberingEncoder(encoder)

    def tokens(self, document: Document) -> bytes:
        """Return the tokens of tools and messages, each encoded by itself."""
        return b"".join(map(self._encoder.encode, _texts(document)))

    def tail_tokens(self, document: Document) -> int:
        """Return how many tokens the last text has."""
        return len(self._encoder.encode(_texts(document)[-1])) // TOKEN_BYTES


class TemplatePrompts:
    """Renders by a model's chat template and tokenizer."""

    def __init__(self, tokenizer: ModelTokenizer, label: str) -> None:
        self.label = label
        self._tokenizer = tokenizer
        self._marks = _pattern_of(tokenizer.marks)
        self._encoder = RememberingEncoder(FunctionEncoder(label, self._ids))
        self._whole = not self._splits_alike()
        self.takes_later_system = self._probe_later_system()

    def tokens(self, document: Document) -> bytes:
        """Return the tokens of a conversation, with the opening of the answer, or of a plain prompt."""
        body = value(document, document.span)
        if "messages" not in body and "input" not in body:
            return self._plain(body.get("prompt"))
        return self._encode(self._render(_conversation(body), body, closed=True))

    def tail_tokens(self, document: Document) -> int:
        """Return how many tokens come on top of those of the conversation without its last message."""
        body = value(document, document.span)
        messages = _conversation(body)
        before = self._encode(self._render(messages[:-1], body, closed=False))
        return max(0, len(self.tokens(document)) - len(before)) // TOKEN_BYTES

    def _render(self, messages: Sequence[Any], body: Mapping[str, Any], *, closed: bool) -> str:
        given = body.get("chat_template_kwargs")
        options = given if isinstance(given, dict) else {}
        try:
            return self._tokenizer.render(messages, _tools(body.get("tools")), closed=closed, options=options)
        except TemplateRefusal as error:
            raise Unrenderable from error

    def _encode(self, text: str) -> bytes:
        if self._whole:
            return self._encoder.encode(text)
        return b"".join(self._encoder.encode(piece) for piece in self._marks.split(text) if piece)

    def _plain(self, prompt: object) -> bytes:
        if isinstance(prompt, list) and all(isinstance(token, int) for token in prompt):
            return pack(prompt)
        text = prompt if isinstance(prompt, str) else json.dumps(prompt)
        return pack(self._tokenizer.ids(text, opened=True))

    def _ids(self, text: str) -> Sequence[int]:
        return self._tokenizer.ids(text, opened=False)

    def _probe_later_system(self) -> bool:
        opening = self._probe([SYSTEM], closed=False)
        later = [self._probe(with_later_system(text), closed=True) for text in TEXTS]
        return takes_later_system(opening, later)

    def _probe(self, messages: Sequence[Any], *, closed: bool) -> tuple[int, ...] | None:
        """Return a made-up conversation's token ids, None where the template refuses it."""
        try:
            return tuple(self._ids(self._render(messages, {}, closed=closed)))
        except Unrenderable:
            return None

    def _splits_alike(self) -> bool:
        """Say whether texts between marks may be encoded, and remembered, one by one."""
        mark = min(self._tokenizer.marks, default=None)
        if mark is None:
            return False
        text = mark.join(SPLIT_PROBES)
        pieces = [piece for piece in self._marks.split(text) if piece]
        return pack(self._ids(text)) == b"".join(pack(self._ids(piece)) for piece in pieces)


def _pattern_of(marks: frozenset[str]) -> re.Pattern[str]:
    """Return the pattern that splits a text at marks, the longest first where two begin alike."""
    ordered = sorted(marks, key=lambda mark: (-len(mark), mark))
    return re.compile("(" + "|".join(map(re.escape, ordered)) + ")") if ordered else re.compile("(?!)")


def _texts(document: Document) -> list[str]:
    """Return the texts that a body's prompt consists of, in their order."""
    texts: list[str] = []
    for name in RENDERED:
        member = document.members.get(name)
        if member is None:
            continue
        raw = document.body[slice(*member.value_span)]
        if name in LISTED and raw.startswith(b"["):
            texts += (_message_text(value(document, span)) for span in elements(document, member.value_span))
        else:
            texts.append(value(document, member.value_span) if raw.startswith(b'"') else raw.decode())
    return texts or [""]


def _message_text(message: Any) -> str:
    if not isinstance(message, dict):
        return json.dumps(message)
    others = {key: found for key, found in message.items() if key not in ("role", "content")}
    more = json.dumps(others) if others else ""
    return f"{message.get('role')}\n{_flat(message.get('content'))}{more}\n"


def _conversation(body: Mapping[str, Any]) -> list[Any]:
    """Return a body's messages as vLLM hands them to the template."""
    if "messages" in body:
        messages = body["messages"]
        return [_message(message) for message in messages] if isinstance(messages, list) else []
    instructions, given = body.get("instructions"), body.get("input")
    opening = [{"role": "system", "content": instructions}] if isinstance(instructions, str) else []
    items = given if isinstance(given, list) else [{"role": "user", "content": given}]
    return opening + [_message(item) for item in items]


def _message(message: Any) -> Any:
    """Return a message with its text parts joined and the arguments of its tool calls decoded."""
    if not isinstance(message, dict):
        return message
    flat = {**message, "content": _flat(message.get("content"))}
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        flat["tool_calls"] = [_call(call) for call in calls]
    else:
        flat.pop("tool_calls", None)
    return flat


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _flat(content: Any) -> str:
    if content is None:
        return ""
    if not isinstance(content, list):
        return content if isinstance(content, str) else json.dumps(content)
    texts = (part.get("text") for part in content if isinstance(part, dict))
    return "\n".join(text for text in texts if isinstance(text, str))


def _tools(tools: Any) -> list[Any] | None:
    if not isinstance(tools, list) or not tools:
        return None
    return [_tool(tool) for tool in tools]


def _tool(tool: Any) -> Any:
    if not isinstance(tool, dict) or not isinstance(tool.get("function"), dict):
        return tool
    function = {"description": None, "parameters": None, **tool["function"]}
    ordered = {key: function[key] for key in FUNCTION_KEYS if key in function}
    if ordered.get("strict") is None:
        ordered.pop("strict", None)
    return {"type": tool.get("type", "function"), "function": ordered}
