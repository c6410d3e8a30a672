"""The arms: how the KV of a prompt's tail comes about, and which of its tokens are computed afresh."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sternpost_core.hint import Correction

LAST: Final = 32
"""The tail's last tokens, computed afresh: the policy's default, enough for a closing question."""

MATCH: Final = 64
"""The most tokens that are computed afresh because the middle names them: the policy's default."""


class Serving(StrEnum):
    """The engines, each with what its figures need: the texts it calibrates from, the type it computes in."""

    GENERIC = "float32, generic texts"
    OWNER = "float32, the owner's texts"
    BFLOAT16 = "bfloat16, no plugin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to serve a prompt; `correction` is None where the whole prompt is computed."""

    name: str
    serving: Serving
    correction: Correction | None = None
    match: int = 0


EXACT: Final = Arm(name="exact", serving=Serving.GENERIC)
FLOOR: Final = Arm(name="bfloat16", serving=Serving.BFLOAT16)
"""Exact prefill in bfloat16: how far answers move by rounding alone."""

REUSING: Final = tuple(
    Arm(name=f"{name}+match" if match else name, serving=serving, correction=correction, match=match)
    for name, serving, correction in (
        ("scaffold", Serving.GENERIC, Correction.NONE),
        ("generic", Serving.GENERIC, Correction.CALIBRATED),
        ("owner", Serving.OWNER, Correction.CALIBRATED),
    )
    for match in (0, MATCH)
)

ARMS: Final = (EXACT, FLOOR, *REUSING)
