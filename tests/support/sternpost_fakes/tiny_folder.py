"""A folder with a tiny random model and a tokenizer of bytes, as `save_pretrained` leaves it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from sternpost_fakes.tiny_models import tiny_network

SPECIALS: Final = ("<|im_start|>", "<|im_end|>")

CHAT_TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

STRICT_TEMPLATE: Final = (
    "{% for message in messages %}{% if message['role'] == 'system' and not loop.first %}"
    "{{ raise_exception('the system message comes first') }}{% endif %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
)
"""Refuses a system message that is not the first, as several models' templates do."""


def byte_tokenizer(chat_template: str | None = CHAT_TEMPLATE) -> Any:
    """Return a tokenizer whose tokens are the bytes of the text, and the special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIALS))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", additional_special_tokens=list(SPECIALS)
    )
    fast.chat_template = chat_template
    return fast


def write_tiny_folder(folder: Path, *, positions: int = 1024) -> Path:
    """Write model and tokenizer, and return the folder."""
    tokenizer = byte_tokenizer()
    network = tiny_network("llama-grouped", vocab_size=len(tokenizer), max_position_embeddings=positions)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
