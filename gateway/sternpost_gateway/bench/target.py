"""Where requests go: an endpoint of OpenAI's API, and what is asked of the engines behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """
    One of what is compared.

    Several `origins`, such as `http://127.0.0.1:8000`, take requests in turn, as behind a round robin.
    `extra` goes into each body; `headers` go with each request. With `salted`, each request gets a
    `cache_salt` of its own, so that vLLM reuses nothing. `engines` are the origins whose metrics are read.
    """

    name: str
    origins: tuple[str, ...]
    model: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    salted: bool = False
    engines: tuple[str, ...] = ()
