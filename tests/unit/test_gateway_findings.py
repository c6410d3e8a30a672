"""What is told of prompts: once a session, and never their text."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from sternpost_fakes.gateway_scene import Scene, policy
from sternpost_gateway.findings import Findings
from sternpost_gateway.metrics import Metrics

SECRET_TEXT = "ship of a user"
SPANS = "sternpost_gateway_volatile_spans_total"
LISTS = "sternpost_gateway_tool_lists_total"
POLICY = "agents/support"


def four_bytes_each(size: int) -> float:
    """Return about how many tokens so many bytes are."""
    return size / 4


def tell(findings: Findings, system: str, session: str = "s-1", **body: Any) -> None:
    """Tell what is found in one request."""
    messages = [
        {"role": "system", "content": f"{system} {SECRET_TEXT}"},
        {"role": "user", "content": SECRET_TEXT},
    ]
    scene = Scene(
        body={"model": "qwen", "messages": messages, **body},
        policy=policy(suffixCache=None),
        headers=((b"x-tenant-id", b"acme"), (b"x-session-id", session.encode())),
    )
    findings.tell(scene.canonicalize())


def test_finding_is_told_once_a_session(caplog: pytest.LogCaptureFixture) -> None:
    """The clock of a session's first request is told of, by place and looks; the next one is not."""
    registry = CollectorRegistry()
    findings = Findings(Metrics(registry), four_bytes_each)
    with caplog.at_level(logging.INFO):
        for system, session in (("at 09:00:01", "s-1"), ("at 09:00:02", "s-1"), ("at 09:00:03", "s-2")):
            tell(findings, system, session)

    labels = {"policy": POLICY, "detector": "Timestamp", "action": "Report"}
    assert 2 == registry.get_sample_value(SPANS, labels)
    assert [
        "policy agents/support: volatile Timestamp at messages[0] char 3, action Report,"
        " about 18 tokens behind it"
    ] * 2 == caplog.messages
    assert SECRET_TEXT not in caplog.text


def test_forgotten_session_is_told_of_again() -> None:
    """What is remembered is bounded; beyond it, telling twice is better than growing."""
    registry = CollectorRegistry()
    findings = Findings(Metrics(registry), four_bytes_each, told_max=1)
    for session in ("s-1", "s-2", "s-1"):
        tell(findings, "at 09:00:01", session)

    assert 3 == registry.get_sample_value(
        SPANS, {"policy": POLICY, "detector": "Timestamp", "action": "Report"}
    )


def test_duplicate_tool_name_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Two tools of one name are an event of the session, and counted with every request."""
    registry = CollectorRegistry()
    findings = Findings(Metrics(registry), four_bytes_each)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            tell(findings, "", tools=[{"type": "x", "name": "y"}] * 2)

    assert 3 == registry.get_sample_value(LISTS, {"policy": POLICY, "outcome": "duplicate_tool_name"})
    assert ["policy agents/support: duplicate_tool_name, tools keep their order"] == caplog.messages
