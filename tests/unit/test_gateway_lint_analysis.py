"""From a log to a report: each fault is found, by kind and place, and each fix does what is said of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sternpost_core.policy import Canonicalize, Layout
from sternpost_core.policy_parse import parse
from sternpost_core.policy_write import to_mapping
from sternpost_fakes.lint_logs import CLOSING, RULES, SHAPE, chats, logged, message, report_of, write_log
from sternpost_gateway.bench.agents import Faults, agent_bodies
from sternpost_gateway.lint.encoders import EstimateEncoder
from sternpost_gateway.lint.prompt import PlainPrompts
from sternpost_gateway.lint.report import Report
from sternpost_gateway.lint.simulate import Simulation

NO_FAULTS = Faults(clock=False, nonce=False, tool_order=False, key_order=False, tail=False)
REQUESTS = 240
"""Enough for a template to be judged by."""

ONE_TOOL = {"type": "function", "function": {"name": "weigh", "parameters": {"type": "object"}}}


def kinds(report: Report) -> dict[str, str | None]:
    """Return the kinds of the findings, with the fix of each."""
    return {str(finding.kind): finding.fix for finding in report.findings}


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        pytest.param(lambda n: f"Now: 2026-11-29 09:{n // 60:02}:{n % 60:02}", "Timestamp", id="clock"),
        pytest.param(lambda n: f"Date: {1 + n % 28} November {2000 + n}", "Date", id="date"),
        pytest.param(lambda n: f"Request id: r-{n:05}", "RequestId", id="request-id"),
        pytest.param(lambda n: f"Session id: s-{n:05}", "SessionId", id="session-id"),
        pytest.param(lambda n: f"trace_id={n:032x}", "TraceId", id="trace-id"),
        pytest.param(lambda n: f"{n:08x}-0000-4000-8000-000000000000", "Uuid", id="uuid"),
        pytest.param(lambda n: f"Turn: {n}", "Counter", id="counter"),
        pytest.param(lambda n: f"commit {n + 10**6:07x}a1", "Hash", id="hash"),
        pytest.param(lambda n: f"cwd: /home/{n}", "WorkingDirectory", id="directory"),
        pytest.param(lambda n: f"Key {n:03}aB3dE6gH9jK2mN5pQ8sT", "RandomToken", id="token"),
    ],
)
def test_what_changes_in_the_prefix_is_found_and_moved(tmp_path: Path, line: Any, kind: str) -> None:
    """The rules behind it are reused once it is out of the way."""
    report = report_of(write_log(tmp_path / "log", chats(40, lambda number: f"{line(number)}\n{RULES}")))

    assert {kind: kind} == kinds(report)
    assert report.reuse < 0.1
    assert report.reuse_fixed > 0.7
    assert (1, "messages[0]") == (report.findings[0].first.line, report.findings[0].first.path)
    assert 40 == report.findings[0].requests
    assert report.policy is not None
    assert [kind] == [rule.detect for rule in report.policy.prompt.volatile]


def test_a_billing_header_is_taken_away(tmp_path: Path) -> None:
    """No user needs it, so it does not move."""
    opening = chats(40, lambda number: f"x-acme-billing-header: v=1; h={number + 4096:x};\n{RULES}")
    report = report_of(write_log(tmp_path / "log", opening))

    assert {"BillingHeader": "BillingHeader"} == kinds(report)
    assert ["Strip"] == [fix.advice.split()[0] for fix in report.fixes]


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("Knowledge cutoff: 2024-06-30", id="date"),
        pytest.param("Founded 1764400000", id="timestamp"),
    ],
)
def test_what_is_always_the_same_is_no_finding(tmp_path: Path, line: str) -> None:
    """A date is volatile by its looks, and not if it never changes."""
    report = report_of(write_log(tmp_path / "log", chats(40, lambda number: f"{line}\n{RULES}")))

    assert {} == kinds(report)
    assert report.policy is None
    assert report.reuse == report.reuse_fixed > 0.8


def test_a_clock_within_a_long_line_is_told_by_what_it_costs(tmp_path: Path) -> None:
    """Its line would take the rules along, so that moving saves nothing; the client can mend it."""
    report = report_of(
        write_log(tmp_path / "log", chats(40, lambda number: f"It is 09:00:{number:02} now. {RULES}"))
    )
    (finding,) = report.findings

    assert report.policy is None
    assert ("Timestamp", None, True) == (finding.kind, finding.fix, finding.estimated)
    assert finding.tokens > 40 * 100
    assert [
        "Relocate Timestamp is not proposed: it saves nothing, because the fixed words of its line move"
    ] == [note.partition(" along")[0] for note in report.notes]


def test_what_changes_in_a_tail_is_told(tmp_path: Path) -> None:
    """A tail that is never the same twice is left alone, and the reason stands in it."""
    lines = [
        chats(1, lambda _: RULES, message("system", f"Now: 09:00:{number:02}\n{CLOSING}"))[0]
        for number in range(40)
    ]
    report = report_of(write_log(tmp_path / "log", lines))

    assert report.policy is None
    assert (
        "in the tail a Timestamp changes, first at messages[2] char 0: have the client put it elsewhere"
        in (report.notes)
    )


def test_a_fix_that_costs_more_than_it_saves_is_not_proposed(tmp_path: Path) -> None:
    """Where hardly anything behind the clock comes again, the marks around what moved weigh more."""
    alike = chats(3, lambda number: f"Now: 2026-11-29 09:00:0{number}\n{RULES[:84]}")
    others = chats(40, lambda number: f"Now: 2026-11-29 09:01:{number:02}\n{number} is your number.")
    report = report_of(write_log(tmp_path / "log", alike + others))

    assert report.policy is None
    assert ["Relocate Timestamp is not proposed: it saves nothing"] == list(report.notes)


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        pytest.param({"tool_order": True}, {"ToolOrder"}, id="order-of-tools"),
        pytest.param({"key_order": True}, {"KeyOrder"}, id="order-of-keys"),
        pytest.param({"tool_order": True, "key_order": True}, {"ToolOrder", "KeyOrder"}, id="both"),
    ],
)
def test_equivalent_tools_are_pinned(tmp_path: Path, faults: dict[str, bool], expected: set[str]) -> None:
    """One fix for both, because one pin is for both."""
    chosen = Faults(
        **{**dict.fromkeys(("clock", "nonce", "tail", "tool_order", "key_order"), False), **faults}
    )
    report = report_of(write_log(tmp_path / "log", list(agent_bodies(60, 1, chosen))))

    assert dict.fromkeys(expected, "Pin") == kinds(report)
    assert report.policy is not None
    assert report.policy.prompt.canonicalize is Canonicalize.PIN


@pytest.mark.parametrize(
    ("tools", "kind"),
    [
        pytest.param(lambda n: [ONE_TOOL, {"type": f"t{n}"}], "ToolSet", id="another-set"),
        pytest.param(
            lambda n: [{**ONE_TOOL, "function": {"name": "weigh", "description": f"Try {n}"}}],
            "ToolText",
            id="another-description",
        ),
    ],
)
def test_what_no_policy_mends_is_told_without_a_fix(tmp_path: Path, tools: Any, kind: str) -> None:
    """Somebody has to change the client."""
    lines = [
        chats(1, lambda _: RULES, tools=tools(number))[0].replace(b"question 0", b"question %d" % number)
        for number in range(40)
    ]
    report = report_of(write_log(tmp_path / "log", lines))
    (finding,) = report.findings

    assert (kind, None, True) == (finding.kind, finding.fix, finding.estimated)
    assert finding.tokens > 1000


def test_other_words_in_front_are_told_by_their_place(tmp_path: Path) -> None:
    """What looks like nothing known is found by where prompts part."""
    names = ["Ada", "Grace", "Edsger", "Barbara", "Donald"]
    report = report_of(
        write_log(
            tmp_path / "log", chats(40, lambda number: f"Hello {names[number % 5]}.{number * 'x'}\n{RULES}")
        )
    )
    (finding,) = report.findings

    assert ("Text", "messages[0]", None) == (finding.kind, finding.first.path, finding.fix)
    assert 6 == finding.first.offset


@pytest.mark.parametrize(
    ("plain_engine", "layout", "suffix"),
    [
        pytest.param(False, Layout.FIXED_TAIL, True, id="by-the-suffix-store"),
        pytest.param(True, Layout.TAIL_FIRST, False, id="in-front"),
    ],
)
def test_closing_rules_are_reused(tmp_path: Path, plain_engine: bool, layout: Layout, suffix: bool) -> None:
    """By the plugin where there is one, and by any engine's own cache where there is none."""
    lines = chats(REQUESTS, lambda number: RULES, message("system", CLOSING))
    report = report_of(write_log(tmp_path / "log", lines), plain_engine=plain_engine)

    assert {"FixedTail": "Tail"} == kinds(report)
    assert report.policy is not None
    assert (layout, suffix) == (report.policy.prompt.layout, report.policy.suffix_cache is not None)
    assert report.reuse_fixed > report.reuse + 0.5


@pytest.mark.parametrize(
    ("requests", "other_tails", "proposed"),
    [
        pytest.param(200, 0, True, id="enough"),
        pytest.param(199, 0, False, id="too-few"),
        pytest.param(400, 20, True, id="stable-enough"),
        pytest.param(400, 21, False, id="too-unstable"),
    ],
)
def test_a_tail_is_proposed_only_where_it_is_stable(
    tmp_path: Path, requests: int, other_tails: int, proposed: bool
) -> None:
    """At 95% of 200 requests, and not one less."""
    lines = chats(requests, lambda number: RULES, message("system", CLOSING))
    others = [line.replace(b"Speak", b"Sp%dk" % number) for number, line in enumerate(lines[:other_tails])]
    report = report_of(write_log(tmp_path / "log", [*others, *lines[other_tails:]]))

    assert proposed == any(fix.name == "Tail" for fix in report.fixes)
    assert proposed != any("the tail is left alone" in note for note in report.notes)


def test_a_short_tail_saves_nothing(tmp_path: Path) -> None:
    """The suffix store takes 256 tokens or more, and the report says why nothing is proposed."""
    report = report_of(
        write_log(tmp_path / "log", chats(REQUESTS, lambda number: RULES, message("system", "Be brief.")))
    )

    assert report.policy is None
    assert [
        "layout: FixedTail, suffix store is not proposed: the tail has 5 tokens, and engines store 256 or"
        " more; --plain-engine tries it in front"
    ] == list(report.notes)


def test_the_proposed_policy_does_what_is_predicted(tmp_path: Path) -> None:
    """Read back and simulated by itself, the policy comes to the very figure of the report."""
    bodies = list(agent_bodies(REQUESTS, 3))
    report = report_of(write_log(tmp_path / "log", bodies), plain_engine=True)
    assert report.policy is not None
    policy = parse(json.loads(json.dumps(to_mapping(report.policy))))
    simulation = Simulation([policy], PlainPrompts(EstimateEncoder()), SHAPE)
    for number, body in enumerate(bodies, start=1):
        simulation.observe(logged(body, number))

    assert policy == report.policy
    assert report.reuse_fixed == pytest.approx(simulation.scenarios[0].tally.reuse)
    assert {"Pin", "Timestamp", "RequestId", "Tail"} == {fix.name for fix in report.fixes}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        pytest.param(["m", "n"], ("m", "n"), id="two"),
        pytest.param([f"m{number}" for number in range(256)], None, id="as-many-as-a-policy-names"),
        pytest.param([f"m{number}" for number in range(257)], (), id="too-many"),
        pytest.param(["m" * 257], (), id="too-long"),
    ],
)
def test_a_policy_is_for_the_models_of_the_log(
    tmp_path: Path, names: list[str], expected: tuple[str, ...] | None
) -> None:
    """For all, where it cannot name each; it has to read in any case."""
    lines = chats(512, lambda number: f"Turn: {number}\n{RULES}")
    sent = [
        line.replace(b'"m"', f'"{names[number % len(names)]}"'.encode()) for number, line in enumerate(lines)
    ]
    policy = report_of(write_log(tmp_path / "log", sent)).policy

    assert policy is not None
    assert policy == parse(to_mapping(policy))
    assert (tuple(names) if expected is None else expected) == policy.match.models


def test_a_clean_log_has_no_findings(tmp_path: Path) -> None:
    """And nothing is proposed."""
    report = report_of(write_log(tmp_path / "log", list(agent_bodies(60, 1, NO_FAULTS))))

    assert ((), (), None) == (report.findings, report.fixes, report.policy)
    assert report.reuse > 0.7


@pytest.mark.parametrize("show_text", [True, False])
def test_text_is_kept_only_where_it_is_asked_for(tmp_path: Path, show_text: bool) -> None:
    """Logs are private."""
    path = write_log(
        tmp_path / "log", chats(40, lambda number: f"Now: 2026-11-29 09:00:{number:02}\n{RULES}")
    )
    (finding,) = report_of(path, show_text=show_text).findings

    assert ("Now: 2026-11-29 09:00:00" if show_text else None) == finding.first.excerpt


def test_costs_are_the_price_of_the_tokens(tmp_path: Path) -> None:
    """Per million."""
    path = write_log(tmp_path / "log", chats(40, lambda number: f"Turn: {number}\n{RULES}"))
    report = report_of(path, price=2.0)

    assert report.tokens_saved * 2.0 / 1_000_000 == report.money(report.tokens_saved)
    assert report_of(path).money(1) is None
