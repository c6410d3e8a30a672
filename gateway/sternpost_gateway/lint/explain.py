"""Two requests side by side: where they part, as bytes and as tokens, and what that looks like."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sternpost_core.divergence import Divergence, Part, common_length, first_divergence
from sternpost_core.errors import OperatingError, SternpostError
from sternpost_core.jsonspan import Document, scan
from sternpost_gateway.dialogue import dialogue_of
from sternpost_gateway.lint.encoders import TOKEN_BYTES
from sternpost_gateway.lint.prompt import Prompts, Unrenderable
from sternpost_gateway.lint.request import PATHS
from sternpost_gateway.lint.survey import excerpt_of
from sternpost_gateway.parts import parts_of

BODY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of one request's file; a gateway takes no larger body either."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the requests: its file, and its length in bytes, parts and tokens."""

    file: str
    body_bytes: int
    parts: int
    tokens: int
    excerpt: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """
    Where two requests part.

    `body_bytes` are what the bodies begin with alike, `part_bytes` the bytes of the part in front of the
    difference, `tokens` what the prompts begin with alike, and `block_tokens` those of them in whole blocks.
    """

    left: Side
    right: Side
    divergence: Divergence | None
    body_bytes: int
    part_bytes: int
    tokens: int
    block_tokens: int
    tokens_by: str


def explain(
    first: Path, second: Path, prompts: Prompts, block_tokens: int, *, show_text: bool
) -> Explanation:
    """
    Compare two files that hold the body of one request each.

    Raises:
        OperatingError: a file cannot be read.
        BodyError: it holds no body that everybody reads alike.
        SternpostError: the model's template refuses one of them.
    """
    left, right = _read(first), _read(second)
    ours, theirs = _parts(first, left), _parts(second, right)
    divergence = first_divergence(ours, theirs)
    tokens = [_tokens(path, document, prompts) for path, document in ((first, left), (second, right))]
    common = _common_tokens(*tokens)
    shown = divergence if show_text else None
    return Explanation(
        left=_side(first, left, ours, tokens[0], shown),
        right=_side(second, right, theirs, tokens[1], shown),
        divergence=divergence,
        body_bytes=common_length(left.text, right.text),
        part_bytes=_part_bytes(theirs, divergence),
        tokens=common,
        block_tokens=common // block_tokens * block_tokens,
        tokens_by=prompts.label,
    )


def explanation_text(found: Explanation) -> str:
    """Return the comparison in lines."""
    left, right, divergence = found.left, found.right, found.divergence
    lines = [
        f"{'':24}{left.file:>24} {right.file:>24}",
        f"{'bytes':24}{left.body_bytes:>24,} {right.body_bytes:>24,}",
        f"{'parts':24}{left.parts:>24,} {right.parts:>24,}",
        f"{'tokens':24}{left.tokens:>24,} {right.tokens:>24,}",
        f"tokens by: {found.tokens_by}",
        f"alike from the start: {found.body_bytes:,} bytes of the bodies, {found.tokens:,} tokens of the"
        f" prompts, {found.block_tokens:,} of them in whole blocks",
    ]
    if divergence is None:
        return "\n".join([*lines, "the prompts do not part"])
    message = "no message" if divergence.message is None else f"message {divergence.message}"
    lines.append(
        f"they part at {divergence.path} ({message}), char {divergence.offset:,}, byte {found.part_bytes:,}"
        f" of it; it looks like {divergence.guess.value}"
    )
    lines += [f"  {side.file}: {side.excerpt}" for side in (left, right) if side.excerpt is not None]
    return "\n".join(lines)


def explanation_json(found: Explanation) -> str:
    """Return the comparison as JSON."""
    divergence = found.divergence
    parting: dict[str, Any] | None = None
    if divergence is not None:
        parting = {
            "path": divergence.path,
            "message": divergence.message,
            "char": divergence.offset,
            "byte": found.part_bytes,
            "guess": divergence.guess.value,
        }
    return json.dumps(
        {
            "requests": [_side_mapping(found.left), _side_mapping(found.right)],
            "alike": {"bytes": found.body_bytes, "tokens": found.tokens, "block_tokens": found.block_tokens},
            "tokens_by": found.tokens_by,
            "parting": parting,
        },
        indent=2,
    )


def _side_mapping(side: Side) -> dict[str, Any]:
    mapping = {"file": side.file, "bytes": side.body_bytes, "parts": side.parts, "tokens": side.tokens}
    return mapping if side.excerpt is None else {**mapping, "text": side.excerpt}


def _read(path: Path) -> Document:
    try:
        with path.open("rb") as file:
            body = file.read(BODY_BYTES_MAX + 1)
    except OSError as error:
        raise OperatingError(f"{path} cannot be read: {error.strerror}") from error
    if len(body) > BODY_BYTES_MAX:
        raise OperatingError(f"{path} is larger than {BODY_BYTES_MAX} bytes")
    return scan(body)


def _parts(file: Path, document: Document) -> list[Part]:
    for holder, path in PATHS.items():
        if holder in document.members and (dialogue := dialogue_of(document, path)) is not None:
            return parts_of(document, dialogue)
    raise SternpostError(f"{file}: there is no prompt that can be read; allowed: {', '.join(PATHS)}")


def _tokens(path: Path, document: Document, prompts: Prompts) -> bytes:
    try:
        return prompts.tokens(document)
    except Unrenderable as error:
        raise SternpostError(f"{path}: the model's chat template refuses this conversation") from error


def _common_tokens(left: bytes, right: bytes) -> int:
    return common_length(left.decode("latin-1"), right.decode("latin-1")) // TOKEN_BYTES


def _part_bytes(parts: list[Part], divergence: Divergence | None) -> int:
    if divergence is None or divergence.index >= len(parts):
        return 0
    return len(parts[divergence.index].text[: divergence.offset].encode(errors="surrogatepass"))


def _side(path: Path, document: Document, parts: list[Part], tokens: bytes, shown: Divergence | None) -> Side:
    excerpt = None
    if shown is not None:
        excerpt = excerpt_of(parts[shown.index].text[shown.offset :]) if shown.index < len(parts) else ""
    return Side(str(path), len(document.body), len(parts), len(tokens) // TOKEN_BYTES, excerpt)
