"""
From text to tokens: by a model's own tokenizer, by byte-pair ranks, or by a plain estimate.

Tokens are kept as bytes, four for each, so that a block of a cache is a slice of them. What reads a tokenizer
is imported when it is asked for only: each is large, and each is in a package of its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from sternpost_core.errors import Fault, OperatingError, SettingsError
from sternpost_gateway.bounded import BoundedSize

TOKEN_BYTES: Final = 4
"""Bytes that one token is kept as."""

BYTES_PER_TOKEN: Final = 4
"""Bytes of text that the estimate takes for one token; prose in English has about as many."""

MEMORY_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of texts, and of their tokens, that are remembered; most texts of a log come again and again."""

_PADDING: Final = b" "


class Encoder(Protocol):
    """Turns text into tokens; `label` says by what, for the report."""

    label: str

    def encode(self, text: str) -> bytes:
        """Return the tokens of a text, `TOKEN_BYTES` for each."""


class EstimateEncoder:
    """Takes every four bytes for a token."""

    label = f"estimate, {BYTES_PER_TOKEN} bytes to a token"

    def encode(self, text: str) -> bytes:
        """Return the text's bytes, filled up to a whole token."""
        data = text.encode(errors="surrogatepass")
        return data + _PADDING * (-len(data) % TOKEN_BYTES)


class FunctionEncoder:
    """Encodes by a function that returns token ids."""

    def __init__(self, label: str, ids_of: Callable[[str], Sequence[int]]) -> None:
        self.label = label
        self._ids_of = ids_of

    def encode(self, text: str) -> bytes:
        """Return the text's token ids."""
        return pack(self._ids_of(text))


class RememberingEncoder:
    """Remembers what another encoder has returned, least recently used first out."""

    def __init__(self, encoder: Encoder, bytes_max: int = MEMORY_BYTES_MAX) -> None:
        self.label = encoder.label
        self._encoder = encoder
        self._known: BoundedSize[str, bytes] = BoundedSize(bytes_max)

    def encode(self, text: str) -> bytes:
        """Return the tokens of a text."""
        known = self._known.get(text)
        if known is None:
            known = self._encoder.encode(text)
            self._known.put(text, known, len(text) + len(known))
        return known


def pack(ids: Sequence[int]) -> bytes:
    """Return token ids as bytes."""
    return array("I", ids).tobytes()


def named_encoder(name: str) -> Encoder:
    """
    Return an encoder by its name, from the ranks that the package bpe-openai brings along.

    Raises:
        OperatingError: the package is not installed.
        SettingsError: it does not have this encoding.
    """
    try:
        import bpe_openai
    except ImportError as error:
        raise OperatingError("--encoding needs the package bpe-openai: install sternpost[lint]") from error
    names = bpe_openai.list_encoding_names()
    if name not in names:
        raise SettingsError("lint", [Fault("--encoding", repr(name), ", ".join(names))])
    return FunctionEncoder(name, bpe_openai.get_encoding(name).encode_ordinary)


def ranks_encoder(path: Path) -> Encoder:
    """
    Return an encoder by a file of ranks, one token in base64 and its rank on each line.

    Words are split by the rule of GPT-2, which is near enough to count by.

    Raises:
        OperatingError: the file cannot be read, or tiktoken is not installed.
        SettingsError: it holds no ranks.
    """
    try:
        from tiktoken import Encoding
        from tiktoken.load import load_tiktoken_bpe
        from tiktoken_ext.openai_public import r50k_pat_str
    except ImportError as error:
        raise OperatingError("--ranks needs the package tiktoken: install sternpost[gateway]") from error
    try:
        ranks = load_tiktoken_bpe(str(path))
        if not all(bytes([byte]) in ranks for byte in range(256)):
            raise ValueError("every byte needs a rank")
        encoding = Encoding(path.name, pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens={})
    except OSError as error:
        raise OperatingError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, IndexError) as error:
        fault = Fault("--ranks", str(path), "a file with a token in base64 and its rank on each line")
        raise SettingsError("lint", [fault]) from error
    return FunctionEncoder(f"ranks of {path.name}", encoding.encode_ordinary)
