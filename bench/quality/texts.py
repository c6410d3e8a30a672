"""The texts of a model's tokens, one by one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer

from sternpost_core.errors import OperatingError

TOKENIZER_FILE: Final = "tokenizer.json"

TextOf = Callable[[int], str]
"""Returns a token's text."""


def token_texts(model: Path) -> TextOf:
    """
    Return what gives a token's text, those of special tokens included.

    Raises:
        OperatingError: the model's directory holds no tokenizer.
    """
    path = model / TOKENIZER_FILE
    if not path.is_file():
        raise OperatingError(f"{path} is not there; fetch the model by `sternpost model fetch`")
    tokenizer = Tokenizer.from_file(str(path))
    return lambda token: str(tokenizer.decode([token], skip_special_tokens=False))
