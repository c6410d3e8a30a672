"""What looks as if it were different next time, and what does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.policy import Detector
from sternpost_core.volatile import SPANS_MAX, detect

UUID = "123e4567-e89b-12d3-a456-426614174000"


@pytest.mark.parametrize(
    ("line", "span", "detector"),
    [
        pytest.param("Now: 2026-11-29 09:00:01", "Now: 2026-11-29 09:00:01", "Timestamp", id="label"),
        pytest.param("at 2026-11-29T09:00:00.120Z; 3", "2026-11-29T09:00:00.120Z", "Timestamp", id="iso"),
        pytest.param("at 2026-11-29 09:00 +01:00", "2026-11-29 09:00 +01:00", "Timestamp", id="offset"),
        pytest.param("It is 17:12:40 (CET).", "17:12:40", "Timestamp", id="time"),
        pytest.param("epoch 1764400000 s", "1764400000", "Timestamp", id="epoch-seconds"),
        pytest.param("epoch 1764400000123 ms", "1764400000123", "Timestamp", id="epoch-milliseconds"),
        pytest.param("on 2026-11-29 we", "2026-11-29", "Date", id="iso-date"),
        pytest.param("Date: Sun Nov 29 2026", "Date: Sun Nov 29 2026", "Date", id="weekday"),
        pytest.param("on 29 November 2026 we", "29 November 2026", "Date", id="day-month-year"),
        pytest.param("on Nov. 3rd, 2026 we", "Nov. 3rd, 2026", "Date", id="month-day-year"),
        pytest.param("am 29.11.2026 um", "29.11.2026", "Date", id="dots"),
        pytest.param(
            "Current time: Sunday, November 29, 2026 at 9:00 AM",
            "Current time: Sunday, November 29, 2026 at 9:00 AM",
            "Timestamp",
            id="named-date-and-time",
        ),
        pytest.param("on 29.11.2026 17:12 we", "29.11.2026 17:12", "Timestamp", id="dots-and-time"),
        pytest.param("on 2026/11/29, 09:00 we", "2026/11/29, 09:00", "Timestamp", id="slashes-and-time"),
        pytest.param("at 20261129T090001Z we", "20261129T090001Z", "Timestamp", id="basic-iso"),
        pytest.param("Current time is 17:12 (CET)", "time is 17:12", "Timestamp", id="time-is"),
        pytest.param("It is now 9:05 a.m. there", "now 9:05 a.m.", "Timestamp", id="meridiem"),
        pytest.param("epoch 1796000000.123 s", "1796000000.123", "Timestamp", id="epoch-fraction"),
        pytest.param("on 29. November 2026 we", "29. November 2026", "Date", id="ordinal-dot"),
        pytest.param("Date: 29-Nov-2026", "Date: 29-Nov-2026", "Date", id="dashes"),
        pytest.param("on the 29th of November, 2026 we", "29th of November, 2026", "Date", id="day-of-month"),
        pytest.param("am 14. Dezember 2026 um", "14. Dezember 2026", "Date", id="german"),
        pytest.param("am 3. März 2026 um", "3. März 2026", "Date", id="german-umlaut"),
        pytest.param("le 1er février 2026 ici", "1er février 2026", "Date", id="french"),
        pytest.param("el 3 de enero de 2026 hoy", "3 de enero de 2026", "Date", id="spanish"),
        pytest.param("il 3 maggio 2026 qui", "3 maggio 2026", "Date", id="italian"),
        pytest.param("em 3 de outubro de 2026 a", "3 de outubro de 2026", "Date", id="portuguese"),
        pytest.param("op 3 maart 2026 om", "3 maart 2026", "Date", id="dutch"),
        pytest.param("на 30 ноября 2026 и", "30 ноября 2026", "Date", id="russian"),
        pytest.param("今天是2026年11月29日。", "2026年11月29日", "Date", id="chinese"),
        pytest.param("오늘은 2026년 11월 29일", "2026년 11월 29일", "Date", id="korean"),
        pytest.param(
            "現在2026年11月29日17時12分です", "2026年11月29日17時12分", "Timestamp", id="japanese-time"
        ),
        pytest.param("am 29.11.26 17:12 we", "29.11.26 17:12", "Timestamp", id="short-year-and-time"),
        pytest.param(
            "at 11/29/26, 5:12 PM we", "11/29/26, 5:12 PM", "Timestamp", id="short-year-and-meridiem"
        ),
        pytest.param("Uhrzeit: 17:12 Uhr", "Uhrzeit: 17:12", "Timestamp", id="german-time"),
        pytest.param("Weekday: Sunday", "Weekday: Sunday", "Date", id="weekday-label"),
        pytest.param("on turn 7/20 now", "turn 7/20", "Counter", id="turn-slash"),
        pytest.param("in chat id: 99887766", "chat id: 99887766", "SessionId", id="chat"),
        pytest.param(
            "run 01ARZ3NDEKTSV4RRFFQ69G5FAV a", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "RandomToken", id="ulid"
        ),
        pytest.param("Well, today is Sunday.", "today is Sunday", "Date", id="day-of-the-week"),
        pytest.param("a session: 8f3a2b1c b", "session: 8f3a2b1c", "SessionId", id="session-without-id"),
        pytest.param(
            "a <cwd>/home/ada/src</cwd>", "<cwd>/home/ada/src", "WorkingDirectory", id="cwd-element"
        ),
        pytest.param("on turn 7 of 20 now", "turn 7 of 20", "Counter", id="turn-of"),
        pytest.param("with 1234 tokens left", "1234 tokens left", "Counter", id="tokens-left"),
        pytest.param("and tokens used: 10234", "tokens used: 10234", "Counter", id="tokens-used"),
        pytest.param("the HEAD is at 3f2c1d0a", "HEAD is at 3f2c1d0a", "Hash", id="head"),
        pytest.param("a nonce=ZmFrZS1ub25jZQ1==", "nonce=ZmFrZS1ub25jZQ1==", "RandomToken", id="nonce"),
        pytest.param('x request_id="ab-7c"', 'request_id="ab-7c', "RequestId", id="request"),
        pytest.param("the X-Request-ID: 9f3a", "Request-ID: 9f3a", "RequestId", id="request-header"),
        pytest.param("in session id: s-19c4", "session id: s-19c4", "SessionId", id="session"),
        pytest.param("a traceId=4bf92f3577", "traceId=4bf92f3577", "TraceId", id="trace"),
        pytest.param(
            "a 00-" + "4bf92f3577b34da6" * 2 + "-00f067aa0ba902b7-01",
            "00-" + "4bf92f3577b34da6" * 2 + "-00f067aa0ba902b7-01",
            "TraceId",
            id="traceparent",
        ),
        pytest.param(f"user <{UUID}>", UUID, "Uuid", id="uuid"),
        pytest.param(f"a request id: {UUID}", f"request id: {UUID}", "RequestId", id="labelled-uuid"),
        pytest.param("Turn: 12", "Turn: 12", "Counter", id="counter"),
        pytest.param("this is message #4", "message #4", "Counter", id="number-sign"),
        pytest.param("at commit 0a1b2c3 now", "commit 0a1b2c3", "Hash", id="commit"),
        pytest.param("of " + "0a1b2c3d" * 4, "0a1b2c3d" * 4, "Hash", id="digest"),
        pytest.param("cwd: ~/ships/log", "cwd: ~/ships/log", "WorkingDirectory", id="cwd"),
        pytest.param(
            "The working directory: /home/a b",
            "working directory: /home/a",
            "WorkingDirectory",
            id="directory",
        ),
        pytest.param("a 8Fj3kLm9QpRsT2uVwXyZ b", "8Fj3kLm9QpRsT2uVwXyZ", "RandomToken", id="token"),
        pytest.param(
            "x-acme-billing-header: v=9.9.9; h=0a1b2;",
            "x-acme-billing-header: v=9.9.9; h=0a1b2;",
            "BillingHeader",
            id="billing",
        ),
    ],
)
def test_volatile_span_is_found(line: str, span: str, detector: str) -> None:
    """The span is exactly what changes, and the label that begins the line with it."""
    assert [(span, detector)] == [(line[one.start : one.end], one.detector.value) for one in detect(line)]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "You are the order desk of a small shop. Rule 1: be brief. Rule 2: cite the order number.",
        "Shop closes at 18:00.",
        "Version 2.10.3 of 12 parts, 1200 tokens",
        "The session id: required, never shown",
        "Write to the working directory of the user",
        "deadbeefdeadbeefdeadbeefdeadbeef",
        "a_long_name_in_lower_case_with_2_digits",
        "ALONGNAMEINUPPERCASEWITH2DIGITS",
        "say x-acme-billing-header: v=9.9.9; h=0a1b2;",
        "x-acme-billing-header: nothing in hex",
        "Order 20261129 of 2026",
        "Call again today if nobody answers",
        "Have a break from 9:30 to 10:15",
        "The session: brief, kind, and over in 20 minutes",
        "Use at most 2000 tokens in 3 turns",
        "From now on 12 rules hold",
        "The nonce is never shown",
        "Head to door 1234567",
        "Take 12 of 2000 maisonettes, 3 majors and 5 decanters of 2024",
        "Version 1.2.26 and parts 10-12-26",
        "Give 5 gennakers 2000 miles",
        "The rest day is Sunday and it has 24 hours",
        "0123456789012345678901234567890",
        "01ABCDEFGHJKMNPQRSTVWXYZAB",
    ],
)
def test_fixed_text_is_left_alone(line: str) -> None:
    """Prices, rules, versions and names are no volatile spans."""
    assert () == detect(line)


def test_spans_of_one_line_are_told_apart() -> None:
    """A line may hold several; they come in their order."""
    found = detect(f"12:00:01 {UUID} Turn: 7")

    assert [Detector.TIMESTAMP, Detector.UUID, Detector.COUNTER] == [span.detector for span in found]


def test_spans_of_one_line_are_bounded() -> None:
    """A line of nothing but times costs no more than its length."""
    assert SPANS_MAX == len(detect("12:00:01 " * 1000))


SPANS = (
    "2026-11-29 09:00:01",
    "Sunday, November 29, 2026 at 9:00 AM",
    "29. November 2026",
    "29.11.2026",
    "2026年11月29日 17:12",
    "1764400000",
    "request id = " + "a1b2c3d4" * 16,
    "session: 8f3a2b1c",
    UUID,
    "cwd: /home/ada/" + "src/" * 40,
    "turn 7 of 20",
    "tokens used: 10234",
    "message number   :  4",
    "0a1b2c3d" * 16,
    "HEAD is at 3f2c1d0a",
    "nonce=" + "Zm1" * 40,
    "8Fj3kLm9QpRsT2uVwXyZ" * 6,
    "today is Sunday",
)
FILLERS = st.builds(
    str.__mul__, st.sampled_from(["so ", "order 17, ", "é 2,000: ", "a-b 3. "]), st.integers(30, 80)
)


@given(st.lists(st.tuples(FILLERS, st.sampled_from(SPANS)), min_size=1, max_size=8), FILLERS)
def test_span_is_found_wherever_it_stands(pieces: list[tuple[str, str]], end: str) -> None:
    """In a long line the same is found as in a short one, and nothing else."""
    line, expected = "", []
    for filler, span in pieces:
        line += filler + " " + span + " "
        (found,) = detect(f"so {span} ")
        at = len(line) - len(span) - 4
        expected.append((at + found.start, at + found.end, found.detector))

    assert expected == [(one.start, one.end, one.detector) for one in detect(line + end)]


@given(st.text(alphabet=st.sampled_from("0123456789abcdefABZ-:=./ T_id"), max_size=200))
def test_spans_do_not_overlap(line: str) -> None:
    """Spans are in order, within the line, and not empty."""
    bounds = [bound for span in detect(line) for bound in (span.start, span.end)]

    assert sorted(bounds) == bounds and all(0 <= bound <= len(line) for bound in bounds)
    assert all(span.start < span.end for span in detect(line))
