"""
Volatile spans: what in a line of a prompt looks as if it were different next time.

A guess from the looks alone, so it serves to point at things; whether anything is done about them is a
policy's decision. Every pattern repeats at most a named number of times and begins where a word begins, so
that the time for a line grows with its length only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from sternpost_core.policy import Detector

_MONTH: Final = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}\.?"
_DAY: Final = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{0,6},? "
_ORDINAL: Final = r"\d{1,2}(?:st|nd|rd|th)?"
_ASSIGNED: Final = r"[\"']?\s{0,4}[:=]\s{0,4}[\"']?"
_NAME: Final = r"[\w.:-]{0,127}"
_TOKEN: Final = r"[A-Za-z0-9_-]"
_MERIDIEM: Final = r"(?: ?[ap]\.?m\b\.?)?"
_CLOCK: Final = r"\d{1,2}:\d{2}(?::\d{2})?"
_NUMERIC_DATE: Final = r"(?:\d{4}([-/])\d{2}\1\d{2}|\d{1,2}([./])\d{1,2}\2\d{4})"
_NAMED_DATE: Final = (
    rf"(?:{_DAY})?"
    rf"(?:{_MONTH} {_ORDINAL},? \d{{4}}|{_ORDINAL}\.? {_MONTH},? \d{{4}}|\d{{1,2}}-{_MONTH}-\d{{4}})"
)


def _labelled_id(label: str) -> str:
    """Return the pattern of an identifier behind its label; a value without a digit is a word."""
    return rf"\b{label}[ _-]?id\b{_ASSIGNED}(?={_NAME}\d)[\w.:-]{{4,128}}"


_PATTERNS: Final = (
    (Detector.BILLING_HEADER, r"\Ax-[a-z-]{1,64}-billing-header:(?=.{0,512}=[0-9a-f]{4,64}(?:[;\s]|\Z)).*"),
    (Detector.REQUEST_ID, _labelled_id("request")),
    (
        Detector.SESSION_ID,
        rf"\b(?:session|conversation|thread){_ASSIGNED}(?=[a-f-]{{0,63}}\d)[0-9a-f-]{{6,64}}(?![\w-])",
    ),
    (Detector.SESSION_ID, _labelled_id("(?:session|conversation|thread)")),
    (Detector.TRACE_ID, _labelled_id("(?:trace|span|correlation)")),
    (Detector.TRACE_ID, r"\b00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\b"),
    (Detector.WORKING_DIRECTORY, r"<(?:cwd|working_?directory)>\s{0,4}[~/.\w][^\s<]*"),
    (
        Detector.WORKING_DIRECTORY,
        rf"\b(?:(?:working|current) directory|cwd|pwd|workdir){_ASSIGNED}[~/.\w]\S*",
    ),
    (Detector.UUID, r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"),
    (
        Detector.TIMESTAMP,
        r"\b\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(?::\d{2}(?:[.,]\d{1,9})?)?"
        r"(?: ?(?:Z|UTC|[+-]\d{2}:?\d{2}))?(?!\d)",
    ),
    (
        Detector.TIMESTAMP,
        rf"(?<![\w/-])(?:{_NUMERIC_DATE}|{_NAMED_DATE}),?(?: at)? {_CLOCK}{_MERIDIEM}(?!\d)",
    ),
    (Detector.TIMESTAMP, r"\b\d{8}T\d{6}Z?\b"),
    (
        Detector.TIMESTAMP,
        rf"\b(?:time|now)\b(?: is|:| =)? {{0,4}}(?:about )?{_CLOCK}{_MERIDIEM}(?![\d:])",
    ),
    (Detector.TIMESTAMP, r"(?<![\d:])\d{1,2}:\d{2}:\d{2}(?:[.,]\d{1,9})?(?![\d:])"),
    (Detector.TIMESTAMP, r"(?<![\w.])1[5-9]\d{8}(?:\.\d{1,9}|\d{3}|\d{6}|\d{9})?(?![\w.]\w)\b"),
    (Detector.DATE, rf"(?<![\d./-]){_NUMERIC_DATE}(?![\d/-])"),
    (Detector.DATE, rf"\b{_NAMED_DATE}\b"),
    (Detector.DATE, r"\btoday(?:'s date)?(?: is|:)? (?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day\b"),
    (Detector.COUNTER, r"\bturns? \d{1,9} of \d{1,9}\b"),
    (
        Detector.COUNTER,
        r"\btokens (?:used|left|remaining)\s{0,4}[:=]\s{0,4}\d{1,12}\b"
        r"|\b\d{1,12} tokens (?:used|left|remaining)\b",
    ),
    (
        Detector.COUNTER,
        r"\b(?:turn|message|request|attempt|iteration|counter|count)s?"
        r"(?: ?(?:number|no\.|count))?\s{0,4}[:=#]\s{0,4}\d{1,12}\b",
    ),
    (
        Detector.HASH,
        r"\b(?=[a-f]{0,127}\d)[0-9a-f]{32,128}\b"
        r"|\b(?:commit|HEAD(?: is)?(?: at)?)[ :]{1,2}(?=[a-f]{0,39}\d)[0-9a-f]{7,40}\b",
    ),
    (Detector.RANDOM_TOKEN, rf"\bnonce{_ASSIGNED}(?={_NAME}\d)[\w.:+/=-]{{4,128}}"),
)
_COMPILED: Final = tuple(
    (detector, re.compile(pattern, re.ASCII | re.IGNORECASE)) for detector, pattern in _PATTERNS
)

_RANDOM_TOKEN: Final = re.compile(
    rf"(?<!{_TOKEN})(?={_TOKEN}{{0,127}}\d)(?={_TOKEN}{{0,127}}[A-Z])(?={_TOKEN}{{0,127}}[a-z])"
    rf"{_TOKEN}{{20,128}}(?!{_TOKEN})"
)
"""Letters of both cases and digits, in one long word. Case tells here, so this one stands alone."""

_CANDIDATE: Final = re.compile(r"[0-9]|directory|cwd|pwd|workdir|today", re.IGNORECASE)
"""What every line with a volatile span has; most lines have none of it."""

_LABEL: Final = re.compile(r"\s{0,16}[A-Za-z][A-Za-z' _-]{0,31}[:=]\s{0,4}")
"""A label at a line's start, as in `Today's date: `."""


SPANS_MAX: Final = 16
"""Spans of one line that are told apart; one is enough to know the line for what it is."""


@dataclass(frozen=True, slots=True)
class VolatileSpan:
    """The characters of a line from `start` up to `end`, and what they look like."""

    start: int
    end: int
    detector: Detector


def detect(line: str) -> tuple[VolatileSpan, ...]:
    """
    Return the volatile spans of one line, at most `SPANS_MAX`, in their order; none overlaps another.

    Where two detectors find the same characters, the more telling one counts. A label that begins the line
    and stands right before a span belongs to it.
    """
    if _CANDIDATE.search(line) is None:
        return ()
    found: list[VolatileSpan] = []
    for detector, pattern in (*_COMPILED, (Detector.RANDOM_TOKEN, _RANDOM_TOKEN)):
        for match in pattern.finditer(line):
            if len(found) < SPANS_MAX and not any(
                match.start() < span.end and span.start < match.end() for span in found
            ):
                found.append(VolatileSpan(match.start(), match.end(), detector))
    found.sort(key=lambda span: span.start)
    return tuple(_with_label(line, span) for span in found)


def _with_label(line: str, span: VolatileSpan) -> VolatileSpan:
    is_labelled = _LABEL.fullmatch(line, 0, span.start) is not None
    return VolatileSpan(0, span.end, span.detector) if is_labelled else span
