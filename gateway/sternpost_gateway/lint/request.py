"""A request as a log holds it, and why a line of a log holds none."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from sternpost_core.errors import BodyError
from sternpost_core.jsonspan import Document
from sternpost_gateway.dialogue import HOLDERS

PATHS: Final = {holder: path for path, holder in HOLDERS.items()}
"""What a body is sent to, by the member that holds its prompt."""


class LogFormat(StrEnum):
    """What the lines of a log are."""

    BODIES = "bodies"
    """Bodies of requests as OpenAI's API takes them."""

    BATCH = "batch"
    """Input of OpenAI's batch API: `custom_id`, `method`, `url`, `body`."""

    LITELLM = "litellm"
    """Spend logs or callback payloads of LiteLLM."""

    LANGFUSE = "langfuse"
    """Observations of Langfuse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRequest:
    """
    One request: where it was sent to, its body, and who it was from as far as the log says.

    `number` is that of its line, from 1.
    """

    number: int
    path: str
    document: Document = field(repr=False)
    session: str | None = None
    tenant: str | None = None


class BadLine(Exception):
    """A line holds no request; the message says why, and repeats nothing of it."""


class SkippedLine(Exception):
    """A line is about something else than a request for a prompt."""


def fault_of(error: BodyError) -> str:
    """Return the first fault of a body in words."""
    return str(error.faults[0])
