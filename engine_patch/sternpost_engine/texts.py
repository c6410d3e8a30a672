"""
The texts that calibration takes its middles from.

Either the set that ships with the product, a start for any traffic, or texts of the tail's owner, which are
better: four of the owner's are worth more than sixteen of anybody's. A folder of texts holds `*.jsonl` files
with one object a line, `{"kind": "question", "text": "..."}` or `{"kind": "conversation", "messages":
[...]}`, and `*.txt` files of one text each, whose kind is the part of the name before the first dot.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Protocol

from sternpost_core.errors import Fault, SettingsError

TEXTS_MAX: Final = 2000
"""So many texts are read at most; more would only make the engine's start slow."""

TEXT_CHARACTERS_MAX: Final = 200_000
"""Longer texts are cut: no middle needs more."""

JOINT: Final = "\n\n"
"""Stands between texts that are joined to make a long middle."""


@dataclass(frozen=True, slots=True)
class Text:
    """One text, or one conversation as a list of messages, and its kind."""

    kind: str
    content: str | tuple[Mapping[str, Any], ...]


class Encoder(Protocol):
    """Makes token ids as a prompt has them."""

    def text(self, text: str) -> Sequence[int]:
        """Return a text's token ids, without special tokens."""

    def conversation(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[int]:
        """Return what stands between the first user message's beginning and the last one's end."""


class CalibrationTexts:
    """Makes middles of a wanted kind and length, the same for the same number every time."""

    def __init__(self, texts: Sequence[Text], encoder: Encoder) -> None:
        self._by_kind: dict[str, list[Text]] = {}
        for text in texts:
            self._by_kind.setdefault(text.kind, []).append(text)
        self._encoder = encoder

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that there are texts of."""
        return tuple(sorted(self._by_kind))

    def middle(self, kind: str, number: int, tokens: int) -> tuple[int, ...]:
        """
        Return the `number`th middle of a kind, `tokens` long, or shorter where the texts give no more.

        Without a kind, or with one that there are no texts of, the kinds take turns.
        """
        if not self._by_kind or tokens < 1:
            return ()
        taken = kind if kind and kind in self._by_kind else self.kinds[number % len(self.kinds)]
        texts = self._by_kind[taken]
        first = (number * _STRIDE) % len(texts)
        ordered = texts[first:] + texts[:first]
        # Where a kind has both, those of the first one's form are joined.
        plain = isinstance(ordered[0].content, str)
        ids = self._join_texts(ordered, tokens) if plain else self._join_conversations(ordered, tokens)
        return tuple(ids[:tokens])

    def words_of_each(self, words: Callable[[Sequence[int]], Sequence[str]]) -> list[Sequence[str]]:
        """Return each text's words, by a function from token ids to words."""
        return [words(self._encode(text)) for texts in self._by_kind.values() for text in texts]

    def _encode(self, text: Text) -> Sequence[int]:
        if isinstance(text.content, str):
            return self._encoder.text(text.content)
        return self._encoder.conversation(text.content)

    def _join_texts(self, texts: Sequence[Text], tokens: int) -> Sequence[int]:
        """Join plain texts until there are enough tokens; each is encoded once, behind its joint."""
        ids: list[int] = []
        for text in texts:
            if isinstance(text.content, str) and len(ids) < tokens:
                ids += self._encoder.text(JOINT + text.content if ids else text.content)
        return ids

    def _join_conversations(self, texts: Sequence[Text], tokens: int) -> Sequence[int]:
        """
        Join conversations until there are enough tokens.

        A template renders them as a whole, so they cannot be encoded one by one. Twice as many are taken
        each time: in all, no more than about twice what the last rendering takes is rendered.
        """
        talks = [text.content for text in texts if not isinstance(text.content, str)]
        count = 1
        while True:
            messages: list[Mapping[str, Any]] = []
            for talk in talks[:count]:
                # A conversation ends with a question; without it the next one's first message can follow.
                messages = [*messages[:-1], *talk]
            ids = self._encoder.conversation(messages)
            if len(ids) >= tokens or count >= len(talks):
                return ids
            count *= 2


_STRIDE: Final = 7
"""Neighbouring numbers take texts that lie apart, so that few samples are a fair choice of all."""


def generic_texts() -> tuple[Text, ...]:
    """Return the set that ships with the product."""
    content = files("sternpost_engine").joinpath("data/generic.jsonl").read_text("utf-8")
    return tuple(parse_lines(content, "generic.jsonl"))


def read_texts(folder: Path) -> tuple[Text, ...]:
    """
    Read an owner's folder of texts.

    Raises:
        SettingsError: when the folder is not there or holds no text, or a file or a line cannot be read.
    """
    if not folder.is_dir():
        raise SettingsError(
            "calibration texts", [Fault("calibration_texts", str(folder), "a folder of texts")]
        )
    texts: list[Text] = []
    for path in sorted(folder.iterdir()):
        if path.suffix == ".jsonl":
            texts += parse_lines(_read(path), path.name)
        elif path.suffix == ".txt":
            kind = path.name.split(".")[0] if path.name.count(".") > 1 else ""
            content = _read(path)[:TEXT_CHARACTERS_MAX]
            texts += [Text(kind, content)] if content.strip() else []
    if not texts:
        allowed = "a folder with *.jsonl or *.txt files that are not empty"
        raise SettingsError("calibration texts", [Fault("calibration_texts", str(folder), allowed)])
    return tuple(texts[:TEXTS_MAX])


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        allowed = "a file of UTF-8 text that can be read"
        raise SettingsError("calibration texts", [Fault(path.name, type(error).__name__, allowed)]) from error


def parse_lines(content: str, name: str) -> list[Text]:
    """
    Read JSON Lines of texts and conversations; `name` is the file's, for messages.

    Raises:
        SettingsError: which names the first line that is neither.
    """
    # Cut at line feeds alone: a JSON string may hold the other characters that Python calls line ends.
    lines = enumerate(content.split("\n"), start=1)
    return [_from_line(line, f"{name}:{number}") for number, line in lines if line.strip()]


def _from_line(line: str, place: str) -> Text:
    allowed = 'an object with "text", or with "messages" that end with one of the user\'s'
    try:
        item = json.loads(line)
    except (ValueError, RecursionError):
        raise SettingsError("calibration texts", [Fault(place, "no JSON", allowed)]) from None
    if isinstance(item, dict) and _is_text(item.get("text")) and item["text"].strip():
        return Text(str(item.get("kind", "")), item["text"][:TEXT_CHARACTERS_MAX])
    if isinstance(item, dict) and _is_conversation(item.get("messages")):
        return Text(str(item.get("kind", "conversation")), tuple(item["messages"]))
    raise SettingsError("calibration texts", [Fault(place, "another object", allowed)])


def _is_text(value: Any) -> bool:
    """Whether it is text that a tokenizer takes: half a character, as JSON can write it, is not."""
    if not isinstance(value, str):
        return False
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _is_conversation(messages: Any) -> bool:
    if not isinstance(messages, list) or not messages:
        return False
    sound = all(
        isinstance(message, dict)
        and message.get("role") in ("user", "assistant")
        and _is_text(message.get("content"))
        for message in messages
    )
    return sound and bool(messages[-1]["role"] == "user")
