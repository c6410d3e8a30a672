"""
The engine's own tokenizer, as calibration and matching need it.

It is loaded in the scheduler's process. What a chat template puts around a conversation is found by
comparison with the rendering of an empty one, so that no template needs to be known.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

WORD_MARK: Final = "\N{LOWER ONE EIGHTH BLOCK}"
"""Stands for a space in the tokens of SentencePiece's vocabularies."""


class TokenizerEncoder:
    """Encodes texts and conversations with any of vLLM's tokenizers: Hugging Face's, or one of its own."""

    def __init__(self, tokenizer: Any, logger: logging.Logger) -> None:
        self._tokenizer = tokenizer
        self._logger = logger
        self._special = frozenset(tokenizer.all_special_ids)

    def text(self, text: str) -> Sequence[int]:
        """Return a text's token ids, without special tokens."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def conversation(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[int]:
        """
        Return what stands between the first user message's beginning and the last one's end.

        A conversation that the template refuses is taken as its messages' texts.
        """
        try:
            empty = self._render([{"role": "user", "content": ""}])
            whole = self._render([dict(message) for message in messages])
        except Exception as error:  # noqa: BLE001
            # A template is a program of the model's author: it refuses, or fails on what it did not expect,
            # and tokenizers that have their own in place of one raise what they like.
            self._logger.info("the chat template refuses a calibration text: %s", type(error).__name__)
            return self.text("\n\n".join(str(message["content"]) for message in messages))
        before = _common(empty, whole)
        after = _common(empty[before:][::-1], whole[before:][::-1])
        return whole[before : len(whole) - after]

    def token_text(self, token: int) -> str:
        """Return one token's text, an empty one for special tokens and for those that have none."""
        if token in self._special:
            return ""
        try:
            text: str = self._tokenizer.decode([token])
            (written,) = self._tokenizer.convert_ids_to_tokens([token])
        except Exception:  # noqa: BLE001
            # A model may know more tokens than its tokenizer, and a prompt of token ids may hold any of them.
            return ""
        # Some decoders strip the space that a sentence begins with, and take a single token for a sentence.
        begins_word = str(written).startswith(WORD_MARK)
        return f" {text}" if begins_word and not text.startswith(" ") else text

    def _render(self, messages: list[dict[str, Any]]) -> list[int]:
        # As token ids: not every tokenizer reads its control tokens back from the text.
        ids: list[int] = self._tokenizer.apply_chat_template(
            messages, tokenize=True, add_generation_prompt=False, return_dict=False
        )
        return ids


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two sequences begin with in common."""
    pairs = zip(first, second, strict=False)
    return next(
        (position for position, (one, other) in enumerate(pairs) if one != other),
        min(len(first), len(second)),
    )
