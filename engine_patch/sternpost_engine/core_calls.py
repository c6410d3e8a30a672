"""
The methods that are added to vLLM's engine core, for the process that answers HTTP to call.

vLLM finds the method of such a call by its name, and answers between two steps. Nothing of vLLM's own is
changed; an engine without the suffix store answers with an empty object.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol


class Side(Protocol):
    """The half of the connector that knows the store."""

    def describe_pool(self) -> dict[str, Any]:
        """Describe the store as a whole."""

    def describe_tails(self) -> dict[str, Any]:
        """List the held tails."""


def install_calls(engine_core: type) -> None:
    """Add the methods; doing so twice changes nothing."""
    for name, describe in CALLS.items():
        setattr(engine_core, name, describe)


def _side_of(core: Any) -> Side | None:
    connector = core.scheduler.get_kv_connector()
    side: Side | None = getattr(connector, "scheduler_side", None)
    return side


def _pool(core: Any) -> dict[str, Any]:
    side = _side_of(core)
    return {} if side is None else side.describe_pool()


def _tails(core: Any) -> dict[str, Any]:
    side = _side_of(core)
    return {} if side is None else side.describe_tails()


POOL_CALL: Final = "sternpost_pool"
"""Describes the store as a whole."""

TAILS_CALL: Final = "sternpost_tails"
"""Lists the tails."""

CALLS: Final[dict[str, Callable[[Any], dict[str, Any]]]] = {POOL_CALL: _pool, TAILS_CALL: _tails}
"""What is added, by the names under which it is called."""
