"""What is asked: workloads are sessions, sessions are calls that follow one another; all of it values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

CHAT_PATH: Final = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Call:
    """
    One request: its body without what a target decides (model, streaming), and the path that it goes to.

    What is not `measured` only makes the state that the next call meets.
    """

    body: Mapping[str, Any] = field(repr=False)
    path: str = CHAT_PATH
    measured: bool = True


@dataclass(frozen=True, slots=True)
class Session:
    """Calls that follow one another, as answers come; `at` is the session's moment in a trace, in seconds."""

    id: str
    calls: tuple[Call, ...]
    at: float | None = None


@dataclass(frozen=True, slots=True)
class Closed:
    """So many clients at once, each beginning a new session when its last one has ended."""

    at_once: int = 1


@dataclass(frozen=True, slots=True)
class Poisson:
    """Sessions begin independently of one another, on average so many in a second."""

    per_second: float


@dataclass(frozen=True, slots=True)
class Bursts:
    """So many sessions begin at the same moment, and as many again some seconds later."""

    size: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Traced:
    """Sessions begin when a log says; twice the `speed` is half the time between them."""

    speed: float = 1.0


Arrivals = Closed | Poisson | Bursts | Traced


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """
    Sessions, how they arrive, and what warms a target up before anything is measured.

    `about` says in a sentence what it stands for.
    """

    name: str
    about: str
    sessions: tuple[Session, ...] = field(repr=False)
    warm_ups: tuple[Call, ...] = field(repr=False)
    arrivals: Arrivals
