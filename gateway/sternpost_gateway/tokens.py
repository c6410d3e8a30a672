"""
Which tokens a tail is made of, found by rendering synthetic conversations and comparing the results.

No token of any user's message ever enters here: the conversations consist of the fixed prefix, a made-up
user message and the fixed tail.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from sternpost_core.content import ContentId, content_id

EMPTY_TEXT: Final = ""
FIRST_TEXT: Final = "A"
SECOND_TEXT: Final = "B 7"
"""The made-up user messages. The last two share neither their first nor their last character."""

LINE_BREAK: Final = "\n"
"""What stands between the made-up text and a tail that no chat template parts from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """
    What a prompt's fixed parts are rendered from, as raw JSON.

    `opening` are the leading messages, `options` the other fields that rendering depends on (tools, template
    arguments). `tail` is the tail's message; where the tail is only the end of one, `insert` is the byte at
    which the rest of that message's content would stand. A template `is_bare` where no chat template adds
    anything: its `tail` is a JSON string then. Two requests of equal `template_id` have equal fixed parts.
    """

    template_id: ContentId
    model: bytes
    opening: tuple[bytes, ...]
    tail: bytes
    options: tuple[tuple[str, bytes], ...]
    insert: int | None = None
    is_bare: bool = False


@dataclass(frozen=True, slots=True)
class Renderings:
    """Token ids of the conversations; all but `opening` end with the tail and the generation prompt."""

    opening: Sequence[int]
    empty: Sequence[int]
    first: Sequence[int]
    second: Sequence[int]


@dataclass(frozen=True, slots=True)
class TailFacts:
    """A tail's tokens, and those that its KV is encoded after; `prefix_tokens` is for information only."""

    scaffold: tuple[int, ...]
    tail: tuple[int, ...]
    prefix_tokens: int
    scaffold_id: ContentId


def tokenize_body(template: Template, user_text: str, *, with_tail: bool) -> bytes:
    """Return the body for the engine's /tokenize; the fixed parts enter byte for byte."""
    if template.is_bare:
        # A marker stands behind a line break, and the tail's first token must not be the prompt's first: that
        # one draws attention of its own.
        opening = user_text + LINE_BREAK
        prompt = _inserted(template, opening) if with_tail else json.dumps(opening).encode()
        return _object([(b"model", template.model), (b"prompt", prompt), *_options(template)])
    messages = [*template.opening, *_made_up(template, user_text, with_tail=with_tail)]
    fields = [
        (b"model", template.model),
        (b"messages", b"[" + b",".join(messages) + b"]"),
        (b"add_generation_prompt", b"true" if with_tail else b"false"),
    ]
    return _object([*fields, *_options(template)])


def _object(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"{" + b",".join(b'"' + name + b'":' + value for name, value in fields) + b"}"


def _options(template: Template) -> Iterable[tuple[bytes, bytes]]:
    return ((name.encode(), value) for name, value in template.options)


def _inserted(template: Template, user_text: str) -> bytes:
    """Return the tail with the made-up text in front of it, in the same string."""
    text = json.dumps(user_text).encode()[1:-1]
    return template.tail[: template.insert] + text + template.tail[template.insert :]


def _made_up(template: Template, user_text: str, *, with_tail: bool) -> list[bytes]:
    """Return the messages behind the opening: the made-up text in front of the tail, or in its message."""
    if with_tail and template.insert is not None:
        return [_inserted(template, user_text)]
    user = json.dumps({"role": "user", "content": user_text}).encode()
    return [user, template.tail] if with_tail else [user]


def tail_facts(renderings: Renderings) -> TailFacts | None:
    """
    Return the tail's tokens, or None where they depend on what stands before them.

    With the conversation [system][user ""] rendered as 1 2 3 and [system][user ""][tail] as 1 2 3 8 9, the
    tail is 8 9, provided that the two other conversations end with 8 9, too. Where a template closes the
    user's message differently before a tail, what all three end with is the tail instead.
    """
    scaffold_length = len(renderings.opening)
    tail = tuple(renderings.empty[scaffold_length:])
    starts_with_opening = list(renderings.empty[:scaffold_length]) == list(renderings.opening)
    if not (starts_with_opening and tail and _end_alike(tail, renderings)):
        common = min(
            common_suffix(renderings.empty, renderings.first),
            common_suffix(renderings.first, renderings.second),
            len(renderings.empty) - 1,
        )
        if common < 1:
            return None
        tail = tuple(renderings.empty[-common:])
    scaffold = tuple(renderings.empty[: len(renderings.empty) - len(tail)])
    prefix_tokens = common_prefix(renderings.first, renderings.second)
    return TailFacts(scaffold, tail, prefix_tokens, scaffold_id(scaffold))


def scaffold_id(tokens: Sequence[int]) -> ContentId:
    """Return the id of the tokens that a tail's KV is encoded after."""
    packed = b"".join(token.to_bytes(8, "big") for token in tokens)
    return content_id("scaffold", [("tokens", packed)])


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Return how many tokens two sequences begin with alike."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(left), len(right)))


def common_suffix(left: Sequence[int], right: Sequence[int]) -> int:
    """Return how many tokens two sequences end with alike."""
    return common_prefix(left[::-1], right[::-1])


def _end_alike(tail: tuple[int, ...], renderings: Renderings) -> bool:
    length = len(tail)
    return all(tuple(tokens[-length:]) == tail for tokens in (renderings.first, renderings.second))
