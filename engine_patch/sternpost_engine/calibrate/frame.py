"""What stands around a middle in a prompt: scaffold and tail, as the model's chat template writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from jinja2 import TemplateError

from sternpost_core.errors import Fault, SettingsError

FIRST_TEXT: Final = "A"
SECOND_TEXT: Final = "B 7"
"""Made-up user messages that share neither their first nor their last character."""


@dataclass(frozen=True, slots=True)
class Frame:
    """
    A prompt without its middle: `scaffold` and `tail`; the middle's tokens go into the scaffold at `insert`.

    The tokens in front of `insert` are the prefix, which every prompt shares.
    """

    scaffold: tuple[int, ...]
    insert: int
    tail: tuple[int, ...]

    def front(self, middle: Sequence[int]) -> tuple[int, ...]:
        """Return everything in front of the tail."""
        return (*self.scaffold[: self.insert], *middle, *self.scaffold[self.insert :])


def make_frame(tokenizer: Any, tail: str, *, prefix: str = "", role: str = "system") -> Frame:
    """
    Put a tail's text behind a user's message, as the last message, and find out which tokens are fixed.

    `prefix` becomes the first system message. A tokenizer without a chat template joins the texts.

    Raises:
        SettingsError: when the template refuses such a conversation, or the tail's tokens depend on the
            middle.
    """
    if not getattr(tokenizer, "chat_template", None):
        return _plain_frame(tokenizer, tail, prefix)
    renderer = _Renderer(tokenizer, tail, prefix, role)
    empty, first, second = (renderer.ids(text) for text in ("", FIRST_TEXT, SECOND_TEXT))
    opening = renderer.opening()
    tokens = empty[len(opening) :]
    sound = empty[: len(opening)] == opening and tokens and _end_with(tokens, first, second)
    if not sound:
        # The template closes the user's message otherwise before a tail: what all three end with is the tail.
        common = min(_common(empty[::-1], first[::-1]), _common(first[::-1], second[::-1]), len(empty) - 1)
        tokens = empty[len(empty) - common :]
    if not tokens:
        raise SettingsError(
            "calibrate", [Fault("--tail", "its text", "a tail whose tokens are always alike")]
        )
    scaffold = empty[: len(empty) - len(tokens)]
    return Frame(tuple(scaffold), min(_common(first, second), len(scaffold)), tuple(tokens))


def closing_tokens(tokenizer: Any, tail: str, frame: Frame, *, prefix: str = "", role: str = "system") -> int:
    """
    Return how many of the tail's last tokens its last paragraph takes, with what the template puts behind it.

    Answers hang on a closing instruction, so that these are best computed afresh. A tail of one paragraph is
    all closing.
    """
    before, blank_line, _ = tail.rpartition("\n\n")
    if not blank_line:
        return len(frame.tail)
    shorter = make_frame(tokenizer, before, prefix=prefix, role=role)
    return len(frame.tail) - _common(frame.tail, shorter.tail)


class _Renderer:
    """Renders conversations of a fixed prefix, a user's text and a fixed tail."""

    def __init__(self, tokenizer: Any, tail: str, prefix: str, role: str) -> None:
        self._tokenizer = tokenizer
        self._before = [{"role": "system", "content": prefix}] if prefix else []
        self._tail = {"role": role, "content": tail}

    def ids(self, text: str) -> list[int]:
        """Return the prompt for a user's text, with the tail and the opening of the answer."""
        return self._render([*self._before, {"role": "user", "content": text}, self._tail], answer=True)

    def opening(self) -> list[int]:
        """Return the prompt for an empty text, without the tail."""
        return self._render([*self._before, {"role": "user", "content": ""}], answer=False)

    def _render(self, messages: list[dict[str, str]], *, answer: bool) -> list[int]:
        try:
            text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=answer)
        except (TemplateError, ValueError, TypeError, KeyError, IndexError) as error:
            roles = ", ".join(message["role"] for message in messages)
            fault = Fault("--tail-role", f"{roles} ({error})", "an order of roles that the template takes")
            raise SettingsError("the model's chat template", [fault]) from error
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids


def _plain_frame(tokenizer: Any, tail: str, prefix: str) -> Frame:
    scaffold = tokenizer.encode(f"{prefix}\n\n" if prefix else "", add_special_tokens=True)
    tokens = tokenizer.encode(f"\n\n{tail}", add_special_tokens=False)
    return Frame(tuple(scaffold), len(scaffold), tuple(tokens))


def _end_with(tail: list[int], *prompts: list[int]) -> bool:
    return all(prompt[-len(tail) :] == tail for prompt in prompts)


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(left), len(right)))
