"""Conditions: what an object's status says to people and programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from sternpost_core.text import shorten

MESSAGE_LENGTH_MAX: Final = 1024


class Kind(StrEnum):
    """What a condition is about."""

    ACCEPTED = "Accepted"
    READY = "Ready"
    PROGRESSING = "Progressing"
    DEGRADED = "Degraded"


class Truth(StrEnum):
    """Whether it holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition as it is now; when it last changed is found out against the older status."""

    kind: Kind
    truth: Truth
    reason: str
    message: str = ""


def timestamp(seconds: float) -> str:
    """Return a Unix time as Kubernetes writes it."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_of(text: object) -> float | None:
    """Return the Unix time that Kubernetes has written, or None where there is none."""
    if not isinstance(text, str):
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def write_conditions(
    conditions: Iterable[Condition], before: Mapping[str, Any], generation: int, now: float
) -> list[dict[str, Any]]:
    """Return conditions for a status that follows on the status `before`."""
    known = {one.get("type"): one for one in before.get("conditions", []) if isinstance(one, Mapping)}
    return [_write(one, known.get(one.kind.value, {}), generation, now) for one in conditions]


def _write(condition: Condition, before: Mapping[str, Any], generation: int, now: float) -> dict[str, Any]:
    is_same = before.get("status") == condition.truth.value
    message = shorten(condition.message, MESSAGE_LENGTH_MAX)
    return {
        "type": condition.kind.value,
        "status": condition.truth.value,
        "reason": condition.reason,
        **({"message": message} if message else {}),
        "observedGeneration": generation,
        "lastTransitionTime": before["lastTransitionTime"] if is_same else timestamp(now),
    }
