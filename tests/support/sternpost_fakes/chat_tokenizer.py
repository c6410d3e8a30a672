"""A tokenizer whose tokens are characters, with a chat template such as many models have."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

SPECIALS: Final = {"<|begin|>": 0x110000, "<|im_start|>": 0x110001, "<|im_end|>": 0x110002}
"""Tokens that no text has, by what the template writes for them."""

OPENING: Final = "<|im_start|>system\nBe kind.<|im_end|>\n"
"""What the template puts in front where no system message is given."""


class ChatTokenizer:
    """Has of a Hugging Face tokenizer what the engine needs; refuses conversations that do not alternate."""

    all_special_ids: Sequence[int] = tuple(SPECIALS.values())

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return one token per character, and one per special token's name."""
        pieces = re.findall("|".join(map(re.escape, SPECIALS)) + "|.", text, re.DOTALL)
        ids = [SPECIALS.get(piece) or ord(piece) for piece in pieces]
        return [SPECIALS["<|begin|>"], *ids] if add_special_tokens else ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens."""
        names = {token: name for name, token in SPECIALS.items()}
        return "".join(names.get(token) or chr(token) for token in ids)

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Return tokens as the vocabulary writes them."""
        return [self.decode([token]) for token in ids]

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tokenize: bool,
        add_generation_prompt: bool,
        return_dict: bool,
    ) -> list[int]:
        """Render a conversation as token ids."""
        assert tokenize and not return_dict, "token ids are asked for, and nothing beside them"
        assert not add_generation_prompt, "the messages alone are asked for"
        return self.encode(self.rendered(messages), add_special_tokens=False)

    def rendered(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Render a conversation as text."""
        roles = [message["role"] for message in messages]
        if any(role != ("user", "assistant")[number % 2] for number, role in enumerate(roles)):
            raise ValueError("Conversation roles must alternate user/assistant/user/assistant/...")
        return OPENING + "".join(
            f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in messages
        )


class SentenceTokenizer(ChatTokenizer):
    """Writes the space in front of a word into its token, and drops it from whatever it decodes first."""

    vocabulary: Sequence[str] = ("▁the", "▁refund", "s", "<0x0A>")

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, without the space that a sentence does not begin with."""
        text = "".join(self.vocabulary[token] for token in ids)
        return text.replace("<0x0A>", "\n").replace("▁", " ").removeprefix(" ")

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Return tokens as the vocabulary writes them."""
        return [self.vocabulary[token] for token in ids]
