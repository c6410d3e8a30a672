"""What a decision asks for: the values that `decide` functions return and the reconciler carries out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sternpost_operator.resources import Object, Resource


class EventType(StrEnum):
    """How much an event concerns a person."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a person should find beside the object."""

    type: EventType
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Apply:
    """An object that is to be as it is here."""

    resource: Resource
    value: Object


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """
    What is to be done about one object, in this order: apply, write the status, tell.

    `again_seconds` is when to look again if nothing happens before.
    """

    status: Mapping[str, Any]
    applies: tuple[Apply, ...] = ()
    events: tuple[Event, ...] = ()
    again_seconds: float
