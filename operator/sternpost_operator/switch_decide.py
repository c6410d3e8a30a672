"""What is to be said about a CacheKillSwitch: who obeys. Nothing waits for it: gateways watch it, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sternpost_core.errors import Fault
from sternpost_core.kill import CacheKillSwitch
from sternpost_operator.conditions import Condition, Kind, Truth, write_conditions
from sternpost_operator.gateways import GatewayReport
from sternpost_operator.plan import Event, EventType, Plan
from sternpost_operator.status_size import fit

CHANGING_SECONDS: Final = 5.0
"""Between two questions while a gateway does not obey; each begins with a request for the gateways' pods."""

STEADY_SECONDS: Final = 60.0
CONFIG_AGE_SECONDS_MAX: Final = 30.0
"""A gateway with an older configuration may not know of a policy that others have."""

MISSING_MAX: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchObserved:
    """A CacheKillSwitch as read, or its faults, with what the gateways say, by name."""

    switch: CacheKillSwitch | None
    faults: tuple[Fault, ...] = ()
    generation: int
    reports: Mapping[str, GatewayReport] = field(default_factory=dict)


def decide_switch(observed: SwitchObserved, status: Mapping[str, Any], now: float) -> Plan:
    """Return the status of a switch."""
    if observed.switch is None:
        return _refuse(observed, status, now)
    missing = {
        name: reason
        for name, report in sorted(observed.reports.items())
        if (reason := disobedience(observed.switch, report)) is not None
    }
    conditions = [Condition(Kind.ACCEPTED, Truth.TRUE, "Valid"), _ready(len(observed.reports), len(missing))]
    written = {
        "observedGeneration": observed.generation,
        "gateways": len(observed.reports),
        "obeying": len(observed.reports) - len(missing),
        "missing": [
            {"gateway": name, "reason": reason} for name, reason in list(missing.items())[:MISSING_MAX]
        ],
        "conditions": write_conditions(conditions, status, observed.generation, now),
    }
    again = CHANGING_SECONDS if missing else STEADY_SECONDS
    return Plan(status=fit(written, "missing"), events=_events(conditions, status), again_seconds=again)


def disobedience(switch: CacheKillSwitch, report: GatewayReport) -> str | None:
    """Return what keeps a gateway from obeying, or None where it does."""
    if report.fault:
        return report.fault
    selected = {policy: level for policy, level in report.levels.items() if _selects(switch, policy)}
    for policy, level in selected.items():
        if level < switch.level.k:
            return f"level {level} for {policy or 'requests without a policy'}"
    if not selected and not _is_fresh(report):
        # It has none of the policies, and may not have heard of them yet.
        return (
            f"its configuration is {report.config_age:.0f} s old"
            if report.config_age
            else "its configuration is of unknown age"
        )
    return None


def _selects(switch: CacheKillSwitch, policy: str) -> bool:
    namespace, _, name = policy.partition("/")
    selects_all = not switch.namespaces and not switch.policies
    return switch.selects(namespace, name) if policy else selects_all


def _is_fresh(report: GatewayReport) -> bool:
    return report.config_age is not None and report.config_age <= CONFIG_AGE_SECONDS_MAX


def _ready(gateways: int, missing: int) -> Condition:
    if gateways == 0:
        return Condition(Kind.READY, Truth.UNKNOWN, "NoGateways", "no gateway is found that could be asked")
    if missing:
        message = f"{gateways - missing} of {gateways} gateways obey; see status.missing"
        return Condition(Kind.READY, Truth.FALSE, "NotObeyed", message)
    return Condition(Kind.READY, Truth.TRUE, "Obeyed", f"{gateways} gateways obey")


def _refuse(observed: SwitchObserved, status: Mapping[str, Any], now: float) -> Plan:
    message = "; ".join(str(fault) for fault in observed.faults)
    conditions = [
        Condition(Kind.ACCEPTED, Truth.FALSE, "Invalid", message),
        Condition(Kind.READY, Truth.FALSE, "Invalid", "gateways keep the last version that was accepted"),
    ]
    written = {
        **status,
        "observedGeneration": observed.generation,
        "conditions": write_conditions(conditions, status, observed.generation, now),
    }
    return Plan(
        status=fit(written, "missing"), events=_events(conditions, status), again_seconds=STEADY_SECONDS
    )


def _events(conditions: list[Condition], status: Mapping[str, Any]) -> tuple[Event, ...]:
    before = {one["type"]: one["reason"] for one in status.get("conditions", [])}
    changed = [one for one in conditions if one.message and before.get(one.kind.value) != one.reason]
    return tuple(
        Event(EventType.NORMAL if one.truth is Truth.TRUE else EventType.WARNING, one.reason, one.message)
        for one in changed
    )
