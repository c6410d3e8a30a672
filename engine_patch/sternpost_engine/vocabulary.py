"""
Words in token ids.

A tokenizer writes one word in many ways: with a space in front or not, whole or in pieces. So words are
compared by their characters. The text of each token id is looked up once and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

SENTENCE_MARKS: Final = frozenset({".", "!", "?", ";", "\u3002", "\uff01", "\uff1f"})
"""What a sentence, or the part of one that stands for itself, ends with."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word in lower case, and the positions of the first and the last token that hold a part of it."""

    text: str
    first: int
    last: int


class Vocabulary:
    """Finds words in token ids; `text_of` gives one token's text, an empty one for special tokens."""

    def __init__(self, text_of: Callable[[int], str]) -> None:
        self._text_of = text_of
        self._texts: dict[int, str] = {}

    def words(self, tokens: Sequence[int]) -> list[Word]:
        """
        Return the words in their order.

        A word is a run of letters, digits and underscores; scripts that are written without spaces give one
        word per token, for there a run would be a whole sentence.
        """
        found: list[Word] = []
        word, first = "", 0
        for position, token in enumerate(tokens):
            text = self._text(token)
            if not text or _is_unspaced(text):
                _end(found, word, first, position - 1)
                _end(found, "".join(filter(str.isalnum, text)), position, position)
                word = ""
                continue
            for character in text:
                if character.isalnum() or character == "_":
                    first = first if word else position
                    word += character
                else:
                    # The word may have ended with the token before, or inside this one.
                    _end(
                        found, word, first, position if text[0].isalnum() or text[0] == "_" else position - 1
                    )
                    word = ""
        _end(found, word, first, len(tokens) - 1)
        return found

    def ends(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Return the positions of the tokens that end a row or a sentence."""
        return tuple(place for place, token in enumerate(tokens) if _is_end(self._text(token)))

    def _text(self, token: int) -> str:
        text = self._texts.get(token)
        if text is None:
            text = self._texts[token] = self._text_of(token)
        return text


def _end(found: list[Word], word: str, first: int, last: int) -> None:
    if word:
        found.append(Word(word.casefold(), first, max(first, last)))


def _is_end(text: str) -> bool:
    """Whether the text breaks the line, or is a sentence's mark and nothing else."""
    return "\n" in text or text.strip() in SENTENCE_MARKS


def _is_unspaced(text: str) -> bool:
    """Whether the text holds Chinese, Japanese, Thai, Lao, Khmer or Burmese letters."""
    return any(
        0x0E00 <= code <= 0x0EFF
        or 0x1000 <= code <= 0x109F
        or 0x1780 <= code <= 0x17FF
        or 0x3040 <= code <= 0x30FF
        or 0x3400 <= code <= 0x9FFF
        for code in map(ord, text)
    )
