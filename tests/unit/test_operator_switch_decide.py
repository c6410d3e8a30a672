"""A kill switch's status says who obeys it."""

from typing import Any

import pytest

from sternpost_core.errors import Fault
from sternpost_core.kill import CacheKillSwitch, KillLevel
from sternpost_fakes.crd_schema import CrdSchema
from sternpost_fakes.policies import SWITCH
from sternpost_operator.gateways import GatewayReport
from sternpost_operator.switch_decide import SwitchObserved, decide_switch, disobedience

ALL = CacheKillSwitch(name="all", level=KillLevel.NEW_EPOCH)
ONE = CacheKillSwitch(name="one", level=KillLevel.NO_SUFFIX_READS, policies=("agents/support",))
SPACE = CacheKillSwitch(name="space", level=KillLevel.NO_SUFFIX_READS, namespaces=("agents",))
NOW = 1_800_000_000.0

CASES: dict[str, tuple[CacheKillSwitch, GatewayReport, str | None]] = {
    "obeys": (ALL, GatewayReport({"": 2, "agents/support": 3}), None),
    "everybody-but-one": (ALL, GatewayReport({"": 2, "agents/support": 1}), "level 1 for agents/support"),
    "without-a-policy": (ALL, GatewayReport({"": 0}), "level 0 for requests without a policy"),
    "selected-alone": (ONE, GatewayReport({"": 0, "agents/support": 1, "agents/other": 0}), None),
    "obeys-with-an-old-configuration": (ONE, GatewayReport({"agents/support": 1}, 500.0), None),
    "namespace": (SPACE, GatewayReport({"": 0, "agents/other": 0}), "level 0 for agents/other"),
    "unknown-policy": (ONE, GatewayReport({"": 0}, 1.0), None),
    "perhaps-not-heard-of-yet": (ONE, GatewayReport({"": 0}, 31.0), "its configuration is 31 s old"),
    "of-unknown-age": (ONE, GatewayReport({"": 0}), "its configuration is of unknown age"),
    "no-answer": (ONE, GatewayReport(fault="no answer: ConnectError"), "no answer: ConnectError"),
}


@pytest.mark.parametrize(("switch", "report", "expected"), CASES.values(), ids=CASES.keys())
def test_gateway_obeys_where_every_selected_policy_is_at_the_level(
    switch: CacheKillSwitch, report: GatewayReport, expected: str | None
) -> None:
    """A higher level is obedience, too; a policy that a gateway does not have needs none."""
    assert expected == disobedience(switch, report)


STATUSES: dict[str, tuple[dict[str, GatewayReport], tuple[str, str], int]] = {
    "none": ({}, ("Unknown", "NoGateways"), 0),
    "all": ({"a": GatewayReport({"": 2}), "b": GatewayReport({"": 5})}, ("True", "Obeyed"), 2),
    "one-of-two": ({"a": GatewayReport({"": 2}), "b": GatewayReport({"": 0})}, ("False", "NotObeyed"), 1),
}


@pytest.mark.parametrize(("reports", "ready", "obeying"), STATUSES.values(), ids=STATUSES.keys())
def test_status_counts_who_obeys(
    reports: dict[str, GatewayReport], ready: tuple[str, str], obeying: int
) -> None:
    """And is in the schema; a second look without news is silent."""
    observed = SwitchObserved(switch=ALL, generation=1, reports=reports)
    plan = decide_switch(observed, {}, NOW)
    again = decide_switch(observed, plan.status, NOW + 60)

    assert (ready, obeying) == (
        (plan.status["conditions"][1]["status"], plan.status["conditions"][1]["reason"]),
        plan.status["obeying"],
    )
    assert [] == CrdSchema.of("CacheKillSwitch").faults({**SWITCH, "status": plan.status})
    assert (plan.status, ()) == (again.status, again.events)


def test_many_gateways_fit() -> None:
    """The first ones are named."""
    reports = {f"gateway-{number:04}": GatewayReport(fault="x" * 256) for number in range(1000)}
    plan = decide_switch(SwitchObserved(switch=ALL, generation=1, reports=reports), {}, NOW)

    assert (1000, 0, 32) == (plan.status["gateways"], plan.status["obeying"], len(plan.status["missing"]))
    assert [] == CrdSchema.of("CacheKillSwitch").faults({**SWITCH, "status": plan.status})


def test_wrong_switch_is_refused() -> None:
    """The fault is told; what was counted before stays."""
    before: dict[str, Any] = {"gateways": 2, "obeying": 2}
    observed = SwitchObserved(switch=None, faults=(Fault("spec.level", "'K9'", "None, ..."),), generation=2)
    plan = decide_switch(observed, before, NOW)

    assert ("False", "Invalid") == (
        plan.status["conditions"][0]["status"],
        plan.status["conditions"][0]["reason"],
    )
    assert (2, ["Invalid", "Invalid"]) == (plan.status["obeying"], [event.reason for event in plan.events])
