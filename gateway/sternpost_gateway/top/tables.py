"""The figures as words in columns, for the screen and for one printed table alike."""

from __future__ import annotations

from typing import Final

from sternpost_gateway.top.figures import EngineRow, GatewayRow, PolicyRow, PoolRow

UNKNOWN: Final = "-"

ALL_REQUESTS: Final = "(no policy)"
"""How requests are named that no policy matches."""

NO_POOL: Final = "(no pool)"
"""How engines are grouped that are named by flags."""

GATEWAY_HEADINGS: Final = ("GATEWAY", "ENGINES", "TRIPPED", "IN FLIGHT", "KILL", "CONFIG AGE", "FAULT")
POOL_HEADINGS: Final = ("GATEWAY", "POOL", "ENGINES", "READY")
ENGINE_HEADINGS: Final = ("GATEWAY", "ENGINE", "PLUGIN", "COLD IN FLIGHT", "COLD WAITING", "UNCACHED TOKENS")
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


def pool_cells(row: PoolRow) -> tuple[str, ...]:
    """Return a pool's row under `POOL_HEADINGS`."""
    return (row.gateway, row.pool or NO_POOL, _count(row.ready + row.not_ready), _count(row.ready))


def engine_cells(row: EngineRow) -> tuple[str, ...]:
    """Return an engine's row under `ENGINE_HEADINGS`."""
    return (
        row.gateway,
        row.engine,
        row.plugin or UNKNOWN,
        _count(row.cold_in_flight),
        _count(row.cold_waiting),
        _count(row.uncached_tokens),
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
