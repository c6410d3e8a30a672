"""
Volatile spans: what in a line of a prompt looks as if it were different next time.

A guess from the looks alone, so it serves to point at things; whether anything is done about them is a
policy's decision. Every pattern repeats at most a named number of times and begins where a word begins, so
that the time for a line grows with its length only.

A pattern is slow to run over much text, and a prompt may hold documents that are new each time. So each has
anchors, one of which stands in everything that it finds and which are quick to search for: it is run around
them only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from string import ascii_lowercase, ascii_uppercase
from typing import Final

from sternpost_core.policy import Detector

_MONTH: Final = (
    r"(?:(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}"
    # Where other languages do not begin a month as English does.
    r"|März|Mai|Okt(?:ober)?|Dez(?:ember|embro)?|Mei|Maart|Maj|Desember"
    r"|Févr(?:ier)?|Avril|Juin|Juil(?:let)?|Août|Déc(?:embre)?"
    r"|Enero|Abril|Agosto|Dic(?:iembre|embre)?|Gennaio|Maggio|Giugno|Luglio|Settembre|Ottobre"
    r"|Fevereiro|Março|Maio|Setembro|Outubro"
    r"|января|февраля|марта|апреля|мая|июня|июля|августа|сентября|октября|ноября|декабря)\.?"
)
_DAY: Final = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{0,6},? "
_ORDINAL: Final = r"\d{1,2}(?:st|nd|rd|th|er)?"
_ASSIGNED: Final = r"[\"']?\s{0,4}[:=]\s{0,4}[\"']?"
_NAME: Final = r"[\w.:-]{0,127}"
_TOKEN: Final = r"[A-Za-z0-9_-]"
_MERIDIEM: Final = r"(?: ?[ap]\.?m\b\.?)?"
_CLOCK: Final = r"\d{1,2}:\d{2}(?::\d{2})?"
_NUMERIC_DATE: Final = r"(?:\d{4}([-/])\d{2}\1\d{2}|\d{1,2}([./])\d{1,2}\2\d{4})"
_SHORT_DATE: Final = r"\d{1,2}([./-])\d{1,2}\3\d{2}"
_NAMED_DATE: Final = (
    rf"(?:{_DAY})?"
    rf"(?:{_MONTH} {_ORDINAL},? \d{{4}}"
    rf"|{_ORDINAL}\.?(?: of| de)? {_MONTH},?(?: de)? \d{{4}}"
    rf"|\d{{1,2}}-{_MONTH}-\d{{4}})"
)
_SIGNED_DATE: Final = r"(?<!\d)\d{4} ?[年년] ?\d{1,2} ?[月월] ?\d{1,2} ?[日일]"
_CLOCK_ANCHOR: Final = r":\d\d"
_YEAR_ANCHOR: Final = r"\d{4}"
_SESSION_ANCHORS: Final = ("session", "conversation", "thread", "chat")
_DIRECTORY_ANCHORS: Final = ("directory", "cwd", "pwd", "workdir")


def _labelled_id(label: str) -> str:
    """Return the pattern of an identifier behind its label; a value without a digit is a word."""
    return rf"\b{label}[ _-]?id\b{_ASSIGNED}(?={_NAME}\d)[\w.:-]{{4,128}}"


_PATTERNS: Final[tuple[tuple[Detector, str, tuple[str, ...]], ...]] = (
    (Detector.REQUEST_ID, _labelled_id("request"), ("request",)),
    (
        Detector.SESSION_ID,
        rf"\b(?:session|conversation|thread){_ASSIGNED}(?=[a-f-]{{0,63}}\d)[0-9a-f-]{{6,64}}(?![\w-])",
        _SESSION_ANCHORS,
    ),
    (Detector.SESSION_ID, _labelled_id("(?:session|conversation|thread|chat)"), _SESSION_ANCHORS),
    (Detector.TRACE_ID, _labelled_id("(?:trace|span|correlation)"), ("trace", "span", "correlation")),
    (Detector.TRACE_ID, r"\b00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\b", ("00-",)),
    (
        Detector.WORKING_DIRECTORY,
        r"<(?:cwd|working_?directory)>\s{0,4}[~/.\w][^\s<]{0,255}",
        _DIRECTORY_ANCHORS,
    ),
    (
        Detector.WORKING_DIRECTORY,
        rf"\b(?:(?:working|current) directory|cwd|pwd|workdir){_ASSIGNED}[~/.\w]\S{{0,255}}",
        _DIRECTORY_ANCHORS,
    ),
    (Detector.UUID, r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", ("-[0-9a-f]{4}-",)),
    (
        Detector.TIMESTAMP,
        r"\b\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(?::\d{2}(?:[.,]\d{1,9})?)?"
        r"(?: ?(?:Z|UTC|[+-]\d{2}:?\d{2}))?(?!\d)",
        (_CLOCK_ANCHOR,),
    ),
    (
        Detector.TIMESTAMP,
        rf"(?<![\w/-])(?:{_NUMERIC_DATE}|{_SHORT_DATE}|{_NAMED_DATE}),?(?: at)? {_CLOCK}{_MERIDIEM}(?!\d)",
        (_CLOCK_ANCHOR,),
    ),
    (
        Detector.TIMESTAMP,
        rf"{_SIGNED_DATE} ?(?:{_CLOCK}|\d{{1,2}} ?[時时点點시](?: ?\d{{1,2}} ?[分분])?)(?!\d)",
        ("年", "년"),
    ),
    (Detector.TIMESTAMP, r"\b\d{8}T\d{6}Z?\b", (r"t\d{6}",)),
    (
        Detector.TIMESTAMP,
        rf"\b(?:time|now|Uhrzeit|heure|hora)\b(?: is| ?:| =)? {{0,4}}(?:about )?{_CLOCK}{_MERIDIEM}(?![\d:])",
        (_CLOCK_ANCHOR,),
    ),
    (
        Detector.TIMESTAMP,
        r"(?<![\d:])\d{1,2}:\d{2}:\d{2}(?:[.,]\d{1,9})?(?![\d:])",
        (_CLOCK_ANCHOR,),
    ),
    (
        Detector.TIMESTAMP,
        r"(?<![\w.])1[5-9]\d{8}(?:\.\d{1,9}|\d{3}|\d{6}|\d{9})?(?![\w.]\w)\b",
        (r"1[5-9]\d{8}",),
    ),
    (
        Detector.DATE,
        rf"(?<![\d./-]){_NUMERIC_DATE}(?![\d/-])",
        (r"-\d\d-", r"/\d{1,2}/", r"\.\d{1,2}\."),
    ),
    (Detector.DATE, rf"\b{_NAMED_DATE}\b", (_YEAR_ANCHOR,)),
    (Detector.DATE, _SIGNED_DATE, ("年", "년")),
    (
        Detector.DATE,
        r"\b(?:today(?:'s date)?|current day|day of the week|weekday)(?: is|:)? "
        r"(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day\b",
        ("today", "current day", "day of the week", "weekday"),
    ),
    (Detector.COUNTER, r"\bturns? \d{1,9}(?: of |/)\d{1,9}\b", ("turn",)),
    (
        Detector.COUNTER,
        r"\btokens (?:used|left|remaining)\s{0,4}[:=]\s{0,4}\d{1,12}\b"
        r"|\b\d{1,12} tokens (?:used|left|remaining)\b",
        ("tokens ",),
    ),
    (
        Detector.COUNTER,
        r"\b(?:turn|message|request|attempt|iteration|counter|count)s?"
        r"(?: ?(?:number|no\.|count))?\s{0,4}[:=#]\s{0,4}\d{1,12}\b",
        (r":\s{0,4}\d", r"=\s{0,4}\d", r"#\s{0,4}\d"),
    ),
    (
        Detector.HASH,
        r"\b(?=[a-f]{0,127}\d)[0-9a-f]{32,128}\b",
        ("[0-9a-f]{32}",),
    ),
    (
        Detector.HASH,
        r"\b(?:commit|HEAD(?: is)?(?: at)?)[ :]{1,2}(?=[a-f]{0,39}\d)[0-9a-f]{7,40}\b",
        ("commit", "head"),
    ),
    (Detector.RANDOM_TOKEN, rf"\bnonce{_ASSIGNED}(?={_NAME}\d)[\w.:+/=-]{{4,128}}", ("nonce",)),
)
"""
What is looked for, the more telling first, and the anchors of each.

Anchors are patterns, too, for the line in small letters. They begin with a character that is no class where
they can, since nothing is found faster.
"""

_RANDOM_TOKEN: Final = re.compile(
    rf"(?<!{_TOKEN})(?:(?={_TOKEN}{{0,127}}\d)(?={_TOKEN}{{0,127}}[A-Z])(?={_TOKEN}{{0,127}}[a-z])"
    rf"{_TOKEN}{{20,128}}|(?=[0-9A-Z]{{9}}[A-Z]*\d)[0-7][0-9A-HJKMNP-TV-Z]{{25}})(?!{_TOKEN})"
)
"""
Letters of both cases and digits, in one long word, or a ULID.

Case tells here, so this one stands alone.
"""

_BILLING: Final = re.compile(
    r"x-[a-z-]{1,64}-billing-header:(?=.{0,512}=[0-9a-f]{4,64}(?:[;\s]|\Z)).*", re.ASCII | re.IGNORECASE
)
"""A header in the place of a line."""

_BEFORE: Final = 96
_AFTER: Final = 320
"""
Characters in front of an anchor, and behind its beginning, that a pattern is run over.

No pattern begins further in front of its anchor, or looks further behind it.
"""

_TO_SMALL: Final = str.maketrans(ascii_uppercase, ascii_lowercase)

_CANDIDATE: Final = re.compile(
    r"[0-9]|directory|cwd|pwd|workdir|today|current day|day of the week|weekday", re.IGNORECASE
)
"""What every line with a volatile span has; most lines have none of it."""

_LABEL: Final = re.compile(r"\s{0,16}[A-Za-z][A-Za-z' _-]{0,31}[:=]\s{0,4}")
"""A label at a line's start, as in `Today's date: `."""


SPANS_MAX: Final = 16
"""Spans of one line that are told apart; one is enough to know the line for what it is."""


@dataclass(frozen=True, slots=True)
class _Look:
    """A pattern, and the anchors that it is run around."""

    detector: Detector
    pattern: re.Pattern[str]
    anchors: tuple[re.Pattern[str], ...]


def _anchors(*patterns: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern, re.ASCII) for pattern in patterns)


_LOOKS: Final = (
    *(
        _Look(detector, re.compile(pattern, re.ASCII | re.IGNORECASE), _anchors(*anchors))
        for detector, pattern, anchors in _PATTERNS
    ),
    _Look(Detector.RANDOM_TOKEN, _RANDOM_TOKEN, _anchors("[0-9a-z_-]{20}")),
)


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
    for detector, start, end in _matches(line):
        if len(found) < SPANS_MAX and not any(start < span.end and span.start < end for span in found):
            found.append(VolatileSpan(start, end, detector))
    found.sort(key=lambda span: span.start)
    return tuple(_with_label(line, span) for span in found)


def _matches(line: str) -> Iterator[tuple[Detector, int, int]]:
    """Yield what the detectors find, the more telling one first, with its bounds."""
    if (header := _BILLING.match(line)) is not None:
        yield Detector.BILLING_HEADER, *header.span()
    small = line.translate(_TO_SMALL)
    windows: dict[tuple[re.Pattern[str], ...], list[tuple[int, int]]] = {}
    for look in _LOOKS:
        if (around := windows.get(look.anchors)) is None:
            around = windows[look.anchors] = _windows(small, look.anchors)
        for start, end in around:
            yield from ((look.detector, *match.span()) for match in look.pattern.finditer(line, start, end))


def _windows(small: str, anchors: Sequence[re.Pattern[str]]) -> list[tuple[int, int]]:
    """Return where anchors stand, with what is around them, in order and apart."""
    windows: list[tuple[int, int]] = []
    for at in sorted(match.start() for anchor in anchors for match in anchor.finditer(small)):
        start, end = max(0, at - _BEFORE), min(len(small), at + _AFTER)
        if windows and start <= windows[-1][1]:
            windows[-1] = windows[-1][0], end
        else:
            windows.append((start, end))
    return windows


def _with_label(line: str, span: VolatileSpan) -> VolatileSpan:
    is_labelled = _LABEL.fullmatch(line, 0, span.start) is not None
    return VolatileSpan(0, span.end, span.detector) if is_labelled else span
