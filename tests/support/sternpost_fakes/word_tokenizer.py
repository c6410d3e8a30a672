"""A tokenizer whose tokens are words with the space in front of them, for tiny models."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sternpost_fakes.tiny_models import VOCABULARY


class WordTokenizer:
    """Numbers words as they come, and begins again where the vocabulary ends; it has no chat template."""

    all_special_ids: Sequence[int] = ()
    chat_template = None

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return one token per word."""
        words = re.findall(r"\s*\S+", text)
        return [self._numbers.setdefault(word, len(self._numbers)) % VOCABULARY for word in words]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the words of tokens."""
        words = {number % VOCABULARY: word for word, number in reversed(self._numbers.items())}
        return "".join(words[token] for token in ids)

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Return tokens as the vocabulary writes them."""
        return [self.decode([token]) for token in ids]

    def apply_chat_template(self, messages: object, **options: object) -> list[int]:
        """Refuse, as tokenizers without a template do."""
        raise ValueError("the tokenizer has no chat template")
