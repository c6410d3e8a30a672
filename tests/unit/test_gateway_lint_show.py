"""The report as text, JSON, SARIF and HTML: complete, escaped, and without anything of a prompt."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from sternpost_core.policy_parse import parse
from sternpost_fakes.lint_logs import CLOSING, RULES, chats, message, report_of, write_log
from sternpost_gateway.lint.report import KINDS, Report
from sternpost_gateway.lint.show_json import report_json
from sternpost_gateway.lint.show_sarif import SARIF_VERSION, report_sarif
from sternpost_gateway.lint.show_text import report_html, report_text

SECRET = "<b>Operation Barnacle</b>"
"""Words of a prompt; as HTML they would be markup."""


def text(report: Report) -> str:
    """Return the report as text."""
    output = io.StringIO()
    report_text(report, output)
    return output.getvalue()


FORMS: dict[str, Callable[[Report], str]] = {
    "text": text,
    "json": report_json,
    "sarif": report_sarif,
    "html": report_html,
}


@pytest.fixture
def report(tmp_path: Path) -> Report:
    """Return the report of a log with a clock, closing rules and a bad line."""
    return made(tmp_path, show_text=False)


def made(folder: Path, *, show_text: bool) -> Report:
    """Return such a report, with text or without, of a file whose name looks like markup for a terminal."""
    lines = chats(
        200,
        lambda n: f"Now: 2026-11-29 09:{n // 60:02}:{n % 60:02} {SECRET}\n{RULES}",
        message("system", CLOSING),
    )
    return report_of(write_log(folder / "log[1]", [*lines, b"{"]), show_text=show_text, price=2.5)


@pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
def test_no_form_shows_a_prompt_unless_asked(form: Callable[[Report], str], tmp_path: Path) -> None:
    """Neither the words in front nor those at the end."""
    shown = form(made(tmp_path, show_text=False))

    assert not [word for word in ("Barnacle", "harbour", "Speak of nothing", "question") if word in shown]


@pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
def test_every_form_shows_a_short_excerpt_where_asked(form: Callable[[Report], str], tmp_path: Path) -> None:
    """The line that was found, and no more."""
    shown = form(made(tmp_path, show_text=True))

    assert "Barnacle" in shown
    assert "harbour" not in shown


def test_json_says_everything(report: Report) -> None:
    """Lines, cache, shares, findings, fixes, and a policy that reads."""
    found = json.loads(report_json(report))

    assert {"requests": 200, "skipped": 0, "refused": 0, "bad": 1} == {
        key: found["lines"][key] for key in ("requests", "skipped", "refused", "bad")
    }
    assert 201 == found["lines"]["first_bad"][0]["line"]
    assert {"FixedTail", "Timestamp"} == {finding["kind"] for finding in found["findings"]}
    assert {"Timestamp", "Tail"} == {fix["name"] for fix in found["fixes"]}
    assert found["reuse"] < 0.1 < found["reuse_fixed"]
    assert found["saved"]["tokens"] * 2.5 / 1e6 == found["saved"]["money"]
    assert report.policy == parse(found["policy"])
    assert [0.005, 1.0] == pytest.approx([found[key]["stability"] for key in ("template", "template_fixed")])


def test_sarif_has_the_shape_of_its_standard(report: Report) -> None:
    """What the schema of SARIF 2.1.0 asks for, of all that is there."""
    found = json.loads(report_sarif(report))
    (run,) = found["runs"]
    driver = run["tool"]["driver"]

    assert SARIF_VERSION == found["version"] == "2.1.0"
    assert set(KINDS) == {rule["id"] for rule in driver["rules"]}
    assert all(rule["shortDescription"]["text"] for rule in driver["rules"])
    assert {"FixedTail", "Timestamp"} == {result["ruleId"] for result in run["results"]}
    for result in run["results"]:
        assert result["ruleId"] == driver["rules"][result["ruleIndex"]]["id"]
        assert result["level"] in ("none", "note", "warning", "error")
        assert result["message"]["text"]
        physical = result["locations"][0]["physicalLocation"]
        assert physical["artifactLocation"]["uri"].startswith("file:///")
        assert "[" not in physical["artifactLocation"]["uri"]
        assert physical["region"]["startLine"] >= 1


class Page(HTMLParser):
    """Collects the tags of a page, and what it would load."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag, and every address in it."""
        self.tags.append(tag)
        self.loads += [name for name, _ in attrs if name in ("src", "href")]


def test_html_is_one_page_that_loads_nothing(tmp_path: Path) -> None:
    """Words of a prompt stay words."""
    page = Page()
    page.feed(report_html(made(tmp_path, show_text=True)))

    assert [] == page.loads
    assert 2 == page.tags.count("table")
    assert not {"b", "script", "link", "img"} & set(page.tags)


def test_text_says_what_counts(report: Report) -> None:
    """Reuse today and fixed, each finding, each fix, and the bad line."""
    shown = text(report)

    for words in (
        "reused today:",
        "with all fixes:",
        "Timestamp",
        "FixedTail",
        "log[1]:201",
        "stability 100.0%",
    ):
        assert words in shown
