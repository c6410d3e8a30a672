"""The figures as words in columns, for the screen and for one printed table alike."""

from __future__ import annotations

from typing import Final

from sternpost_gateway.top.figures import GatewayRow, PolicyRow

UNKNOWN: Final = "-"

ALL_REQUESTS: Final = "(no policy)"
"""How requests are named that no policy matches."""

GATEWAY_HEADINGS: Final = ("GATEWAY", "ENGINES", "TRIPPED", "IN FLIGHT", "KILL", "CONFIG AGE", "FAULT")
POLICY_HEADINGS: Final = (
    "GATEWAY", "POLICY", "REQUESTS", "REQ/S", "REUSED", "FULL PREFILL", "TTFT P50", "TTFT P95", "KILL",
)  # fmt: skip


def gateway_cells(row: GatewayRow) -> tuple[str, ...]:
    """Return a gateway's row under `GATEWAY_HEADINGS`."""
    return (
        row.gateway,
        _count(row.engines_ready),
        _count(row.engines_tripped),
        _count(row.in_flight),
        _level(row.kill_level),
        _seconds(row.config_age_seconds),
        row.fault or "",
    )


def policy_cells(row: PolicyRow) -> tuple[str, ...]:
    """Return a policy's row under `POLICY_HEADINGS`."""
    return (
        row.gateway,
        row.policy or ALL_REQUESTS,
        _count(row.requests),
        UNKNOWN if row.requests_per_second is None else f"{row.requests_per_second:.1f}",
        _share(row.reused_share),
        _share(row.full_prefill_share),
        _seconds(row.ttft_p50),
        _seconds(row.ttft_p95),
        _level(row.kill_level),
    )


def _count(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0f}"


def _level(value: float | None) -> str:
    return UNKNOWN if value is None else f"K{value:.0f}"


def _share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1%}"


def _seconds(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"
