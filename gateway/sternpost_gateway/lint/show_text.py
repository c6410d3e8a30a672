"""The report for people: text for a terminal, and a page of HTML of the same tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sternpost_core.template import Template
from sternpost_gateway.lint.report import Finding, Report

PLAIN_WIDTH: Final = 110
"""Columns of the text where it does not go to a terminal."""

STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 64rem; padding: 0 1rem }
body { color: #1b2733; background: #fff }
table { border-collapse: collapse; width: 100%; margin: 1rem 0 }
caption { text-align: left; font-weight: 600 }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #d8dee4; vertical-align: top }
.number { text-align: right; font-variant-numeric: tabular-nums } .bar { background: #e7ecf0; height: .8rem }
.bar div { background: #2a7f62; height: 100% }
@media (prefers-color-scheme: dark) { body { background: #10161c; color: #d9e1e8 } }
@media (prefers-color-scheme: dark) { th, td { border-color: #2c3742 } .bar { background: #2c3742 } }
"""


@dataclass(frozen=True, slots=True)
class Column:
    """A column's heading; numbers are set to the right."""

    heading: str
    is_number: bool = False


@dataclass(frozen=True, slots=True)
class Rows:
    """A table: what it is about, its columns, and its rows."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]


def report_text(report: Report, output: TextIO) -> None:
    """Write the report to a terminal, or as plain text elsewhere."""
    console = Console(file=output, width=None if output.isatty() else PLAIN_WIDTH, highlight=False)
    for line in summary(report):
        console.print(Text(line))
    for rows in tables(report):
        console.print()
        console.print(_rich_table(rows))
    for note in notes(report):
        console.print(Text(note))


def report_html(report: Report) -> str:
    """Return a page that needs nothing but itself; every text of the log is escaped."""
    before, after = report.reuse, report.reuse_fixed
    body = [
        "<h1>sternpost lint</h1>",
        *(f"<p>{escape(line)}</p>" for line in summary(report)),
        *(_bar(label, share) for label, share in (("today", before), ("fixed", after))),
        *map(_html_table, tables(report)),
        *(f"<p>{escape(note)}</p>" for note in notes(report)),
    ]
    head = f'<meta charset="utf-8"><title>sternpost lint</title><style>{STYLE}</style>'
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n'
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def summary(report: Report) -> list[str]:
    """Return what the whole report comes to, in sentences."""
    lines = report.lines
    read = f"{lines.requests:,} requests, {report.prompt_tokens:,} prompt tokens ({report.tokens_by})"
    saved = f"{report.tokens_saved:,} tokens{_money(report, report.tokens_saved)}"
    return [
        read,
        f"cache of {report.cache_tokens:,} tokens in blocks of {report.block_tokens}" + _asked(report),
        f"reused today: {report.reuse:.1%}; with all fixes: {report.reuse_fixed:.1%}, which saves {saved}",
    ]


def tables(report: Report) -> list[Rows]:
    """Return the tables that have any rows."""
    found = [_findings(report), _fixes(report)]
    return [rows for rows in found if rows.rows]


def notes(report: Report) -> list[str]:
    """Return what there is to say besides."""
    lines = report.lines
    said = [
        _template_note("template as it is", report.template),
        _template_note("template when fixed", report.template_fixed),
        *(f"note: {note}" for note in report.notes),
    ]
    if lines.refused:
        said.append(f"{lines.refused:,} requests are refused by the chat template and counted nowhere else")
    if lines.skipped:
        said.append(f"{lines.skipped:,} lines are about something else and were skipped")
    if lines.bad:
        said.append(f"{lines.bad:,} bad lines, the first of them:")
        said += [f"  {file}:{line}: {reason}" for file, line, reason in lines.named]
    return [note for note in said if note]


def _findings(report: Report) -> Rows:
    has_text = any(finding.first.excerpt is not None for finding in report.findings)
    columns = [
        Column("finding"),
        Column("first at"),
        Column("where"),
        Column("requests", True),
        Column("costs tokens", True),
        Column("fix"),
    ]
    if has_text:
        columns.append(Column("text"))
    rows = tuple(_finding_row(report, finding, has_text=has_text) for finding in report.findings)
    return Rows("What breaks the cache", tuple(columns), rows)


def _finding_row(report: Report, finding: Finding, *, has_text: bool) -> tuple[str, ...]:
    first = finding.first
    about = "about " if finding.estimated else ""
    row = (
        str(finding.kind),
        f"{first.file}:{first.line}",
        f"{first.path} char {first.offset}",
        f"{finding.requests:,}",
        f"{about}{finding.tokens:,}{_money(report, finding.tokens)}",
        finding.fix or ("none by policy" if finding.estimated else "not proposed"),
    )
    return (*row, first.excerpt or "") if has_text else row


def _fixes(report: Report) -> Rows:
    columns = (
        Column("fix"),
        Column("policy"),
        Column("reuse with it alone", True),
        Column("with all but it", True),
        Column("saves tokens", True),
    )
    rows = tuple(
        (
            fix.name,
            fix.advice,
            f"{fix.reuse_alone:.1%}",
            f"{fix.reuse_without:.1%}",
            f"{fix.tokens:,}{_money(report, fix.tokens)}",
        )
        for fix in report.fixes
    )
    return Rows("What would help", columns, rows)


def _asked(report: Report) -> str:
    if report.cache_tokens == report.cache_tokens_asked:
        return ""
    return f" (asked for {report.cache_tokens_asked:,}; memory and whole blocks allow so many)"


def _money(report: Report, tokens: int) -> str:
    money = report.money(tokens)
    return "" if money is None else f" = {money:,.2f}"


def _template_note(name: str, template: Template | None) -> str:
    if template is None:
        return ""
    prefix, tail = template.prefix, template.tail
    return (
        f"{name}: {prefix.length} elements in front ({prefix.share:.1%}),"
        f" {tail.length} at the end ({tail.share:.1%}), stability {template.stability:.1%}"
    )


def _rich_table(rows: Rows) -> Table:
    table = Table(title=rows.caption, title_justify="left", title_style="bold", expand=False)
    for column in rows.columns:
        table.add_column(column.heading, justify="right" if column.is_number else "left", overflow="fold")
    for row in rows.rows:
        # Text, because what a log says is never markup.
        table.add_row(*map(Text, row))
    return table


def _html_table(rows: Rows) -> str:
    head = "".join(f"<th{_class(column)}>{escape(column.heading)}</th>" for column in rows.columns)
    lines = "".join(f"<tr>{_html_cells(rows.columns, row)}</tr>\n" for row in rows.rows)
    return f"<table><caption>{escape(rows.caption)}</caption><tr>{head}</tr>\n{lines}</table>"


def _html_cells(columns: Sequence[Column], row: Sequence[str]) -> str:
    return "".join(
        f"<td{_class(column)}>{escape(cell)}</td>" for column, cell in zip(columns, row, strict=True)
    )


def _class(column: Column) -> str:
    return ' class="number"' if column.is_number else ""


def _bar(label: str, share: float) -> str:
    return f'<p>{label}: {share:.1%}</p><div class="bar"><div style="width: {share * 100:.1f}%"></div></div>'
