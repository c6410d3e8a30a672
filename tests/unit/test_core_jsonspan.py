"""Bodies are read as strictly as two readers could differ, and their spans are exact."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.errors import BodyError
from sternpost_core.jsonspan import DEPTH_MAX, DIGITS_MAX, Document, Span, elements, members, scan, value

LARGE_BYTES = 12 * 1024 * 1024

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(codec="utf-8"), max_size=10)
keys = st.sampled_from(["messages", "tools", "role", "n"]) | texts
values = st.recursive(
    scalars | texts, lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=10
)
bodies = st.dictionaries(keys, values)
spellings = st.sampled_from(
    [
        {"separators": (",", ":")},
        {"ensure_ascii": False},
        {"indent": 2},
        {"indent": "\t", "ensure_ascii": False},
    ]
)


class Refused(Exception):
    """The oracle does not take the body either."""


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object, refusing a key that is there."""
    if len(dict(pairs)) != len(pairs):
        raise Refused
    return dict(pairs)


def refuse(_: str) -> Any:
    """Refuse NaN and its kin."""
    raise Refused


def check_surrogates(decoded: Any) -> None:
    """Refuse strings that UTF-8 cannot hold."""
    json.dumps(decoded, ensure_ascii=False).encode()


def oracle(body: bytes) -> dict[str, Any] | None:
    """Return what the standard library reads under the same rules, or None where it refuses."""
    try:
        decoded = json.loads(body.decode(), object_pairs_hook=unique, parse_constant=refuse)
        check_surrogates(decoded)
    except (ValueError, Refused):
        return None
    return decoded if isinstance(decoded, dict) else None


def read(body: bytes) -> dict[str, Any] | None:
    """Return the values at the top-level spans, or None where the body is refused."""
    try:
        document = scan(body)
    except BodyError:
        return None
    return {key: value(document, member.value_span) for key, member in document.members.items()}


def assert_spans(document: Document, span: Span, expected: Any) -> None:
    """Check that every span below `span` holds exactly its value."""
    assert expected == value(document, span)
    if isinstance(expected, dict):
        found = members(document, span)
        assert list(expected) == list(found)
        for key, member in found.items():
            assert key == value(document, member.key_span)
            assert_spans(document, member.value_span, expected[key])
    elif isinstance(expected, list):
        spans = elements(document, span)
        assert len(expected) == len(spans)
        for element, inner in zip(spans, expected, strict=True):
            assert_spans(document, element, inner)


@given(bodies, spellings)
def test_spans_hold_their_values(body: dict[str, Any], spelling: Mapping[str, Any]) -> None:
    """Whatever the value and its spelling, each span decodes to what stands there."""
    document = scan(json.dumps(body, **spelling).encode())

    assert_spans(document, document.span, body)
    assert list(body) == list(document.members)


@given(st.binary(max_size=64))
def test_any_bytes_are_read_as_the_standard_library_reads_them(body: bytes) -> None:
    """Arbitrary bytes are refused or read equally."""
    assert oracle(body) == read(body)


@pytest.mark.parametrize("frame", ["{}", '{{"n":{}}}', '{{"messages":[{}]}}', '{{"tools":[{{{}}}]}}'])
@given(st.text('{}[]":,\\u dDeE8aA019.-+ntNI\n é', max_size=40))
def test_nearly_json_is_read_as_the_standard_library_reads_it(frame: str, text: str) -> None:
    """So is text that is made of JSON's own characters, wherever it stands."""
    body = frame.format(text).encode()

    assert oracle(body) == read(body)


@given(bodies, spellings, st.data())
def test_damaged_json_is_read_as_the_standard_library_reads_it(
    body: dict[str, Any], spelling: Mapping[str, Any], data: st.DataObject
) -> None:
    """So is JSON of which a part was cut out or overwritten."""
    whole = json.dumps(body, **spelling).encode()
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, min(len(whole), start + 3)))
    damaged = whole[:start] + data.draw(st.binary(max_size=3)) + whole[end:]

    assert oracle(damaged) == read(damaged)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"n":1e400}', id="beyond-a-double"),
        pytest.param(b'{"n":2512292042121000001}', id="nineteen-digits"),
        pytest.param(b'{"n":1.0}', id="one-point-zero"),
        pytest.param(b'{"n":-0}', id="minus-zero"),
        pytest.param(b'{"n":' + b"9" * DIGITS_MAX + b"}", id="longest-integer"),
        pytest.param(b' \t\r\n{ "n" : [ ] } \n', id="white-space"),
        pytest.param(b"{}", id="empty"),
        pytest.param('{"n":"🚢 \\ud83d\\udea2"}'.encode(), id="paired-surrogates"),
        pytest.param(b'{"n":"\\\\ud800"}', id="escaped-backslash-before-u"),
        pytest.param(b'{"n":"\\u0000"}', id="escaped-nul"),
        pytest.param(b'{"n":' + b"[" * (DEPTH_MAX - 1) + b"]" * (DEPTH_MAX - 1) + b"}", id="deepest"),
        pytest.param('{"é":1,"\\u00c3\\u00a9":2}'.encode(), id="keys-that-look-equal-as-latin-1"),
        pytest.param(b'{"a":{"x":1},"b":{"x":1}}', id="one-key-in-two-objects"),
        pytest.param(b'{"messages":{},"tools":"none"}', id="messages-that-are-no-array"),
        pytest.param(b'{"messages":[1,"",[]],"tools":[]}', id="messages-that-are-no-objects"),
    ],
)
def test_unusual_json_is_accepted_and_kept(body: bytes) -> None:
    """What is valid passes, and the document's body is the very bytes that came."""
    assert body is scan(body).body


CONTENT = "messages[0].content"
DUPLICATE = "a duplicate key"
DEEP_ARRAYS = b"[" * DEPTH_MAX + b"]" * DEPTH_MAX
DEEP_OBJECTS = b'{"user":' * DEPTH_MAX + b"1" + b"}" * DEPTH_MAX

REFUSED = {
    "empty": (b"", "body", "nothing"),
    "blank": (b"  ", "body", "nothing"),
    "array": (b"[1]", "body", "something else"),
    "string": (b'"secret"', "body", "something else"),
    "byte-order-mark": (b"\xef\xbb\xbf{}", "body", "a byte order mark"),
    "utf-16": ('{"a":1}'.encode("utf-16"), "body", "invalid UTF-8 at byte 0"),
    "cut-short": (b'{"messages":[{"content":"secr', CONTENT, "malformed JSON at byte 24"),
    "open-object": (b'{"messages":[{', "messages[0]", "malformed JSON at byte 14"),
    "no-value": (b'{"model":}', "model", "malformed JSON at byte 9"),
    "no-colon": (b'{"model" 1}', "model", "malformed JSON at byte 9"),
    "no-comma": (b'{"model":1 "n":2}', "model", "malformed JSON at byte 11"),
    "no-key": (b"{1:2}", "body", "malformed JSON at byte 1"),
    "comma-at-the-end": (b'{"model":1,}', "body", "malformed JSON at byte 11"),
    "comma-in-array": (b'{"stop":["a",]}', "stop[1]", "malformed JSON at byte 13"),
    "open-quote": (
        b'{"messages":[{"content":"he said "no" and"}]}',
        "messages[0].content",
        "malformed JSON at byte 34",
    ),
    "more-behind": (b'{"model":1} {}', "body", "malformed JSON at byte 12"),
    "more-brackets-behind": (b'{"model":1}]}', "body", "malformed JSON at byte 11"),
    "raw-nul": (b'{"user":"a\x00"}', "user", "malformed JSON at byte 10"),
    "raw-newline": (b'{"user":"a\n"}', "user", "malformed JSON at byte 10"),
    "leading-zero": (b'{"seed":01}', "seed", "malformed JSON at byte 9"),
    "nan": (b'{"temperature":NaN}', "temperature", "NaN"),
    "infinity": (b'{"stop":["a"],"logit_bias":{"7":Infinity}}', "logit_bias.*", "Infinity"),
    "minus-infinity": (b'{"top_p":-Infinity}', "top_p", "-Infinity"),
    "long-integer": (
        b'{"stop":[-1,"1"],"seed":' + b"9" * (DIGITS_MAX + 1) + b"}",
        "seed",
        "a longer integer",
    ),
    "duplicate": (b'{"model":1,"model":2}', "model", DUPLICATE),
    "duplicate-below": (
        b'{"messages":[{},{"role":1,"a":{},"role":2}]}',
        "messages[1].role",
        "a duplicate key",
    ),
    "duplicate-in-escapes": (b'{"tools":[{"n":1,"\\u006e":2}]}', "tools[0].*", DUPLICATE),
    "duplicate-in-utf-8-and-escapes": ('{"é":1,"\\u00e9":2}'.encode(), "*", DUPLICATE),
    "duplicate-in-utf-8-below": ('{"user":{"é":1,"\\u00e9":2}}'.encode(), "user.*", DUPLICATE),
    "no-comma-between-messages": (b'{"messages":[{} {}]}', "messages[0]", "malformed JSON at byte 16"),
    "no-bracket-behind-messages": (b'{"messages":[{}', "messages[0]", "malformed JSON at byte 15"),
    "duplicate-in-a-content": (b'{"messages":[{"content":[{"n":1,"n":2}]}]}', CONTENT + "[0].n", DUPLICATE),
    "lone-high": (
        b'{"messages":[{"content":"a\\ud800"}]}',
        "messages[0].content",
        "a lone surrogate at byte 26",
    ),
    "lone-low": (b'{"user":"\\udc00"}', "user", "a lone surrogate at byte 9"),
    "two-highs": (b'{"user":"\\ud83d\\ud83d\\ude00"}', "user", "a lone surrogate at byte 9"),
    "two-lows": (b'{"user":"\\ud83d\\ude00\\ude00"}', "user", "a lone surrogate at byte 21"),
    "pair-parted-by-a-backslash": (b'{"user":"\\ud83d\\\\\\ude00"}', "user", "a lone surrogate at byte 9"),
    "surrogate-in-a-key": (b'{"\\ud800":1}', "body", "a lone surrogate at byte 2"),
    "raw-surrogate": (
        b'{"messages":[{"content":"\xed\xa0\x80"}]}',
        "messages[0].content",
        "invalid UTF-8 at byte 25",
    ),
    "overlong": (b'{"user":"\xc0\xaf"}', "user", "invalid UTF-8 at byte 9"),
    "cut-character": (b'{"user":"' + b"x" * 70_000 + b'\xe2\x82"}', "user", "invalid UTF-8 at byte 70009"),
    "parted-by-a-chunk": (
        b'{"user":"' + b"x" * (65536 - 10) + b'\xe2x"}',
        "user",
        "invalid UTF-8 at byte 65535",
    ),
    "too-deep": (
        b'{"stop":' + b"[" * DEPTH_MAX + b"]" * DEPTH_MAX + b"}",
        "stop" + "[0]" * 7 + "...",
        "deeper nesting",
    ),
    "far-too-deep": (b'{"stop":' + b"[" * 100_000, "stop" + "[0]" * 7 + "...", "deeper nesting"),
    "too-deep-objects": (b'{"user":' + DEEP_OBJECTS + b"}", "user" + ".user" * 7 + "...", "deeper nesting"),
}


@pytest.mark.parametrize(("body", "path", "found"), REFUSED.values(), ids=REFUSED.keys())
def test_refusal_names_path_and_reason(body: bytes, path: str, found: str) -> None:
    """The fault says where and what, so that a client can mend its request."""
    with pytest.raises(BodyError) as caught:
        scan(body)

    assert [(path, found)] == [(fault.path, fault.value) for fault in caught.value.faults]


@given(st.text("abcdefghijkl", min_size=12), st.binary(max_size=8))
def test_refusal_never_repeats_the_body(secret: str, rest: bytes) -> None:
    """Neither a key nor a value of the client's gets into the message."""
    with pytest.raises(BodyError) as caught:
        scan(f'{{"{secret}":"{secret}","messages":[{{"{secret}":"{secret}" {secret}'.encode() + rest)

    assert secret not in str(caught.value)


def test_representation_never_shows_the_body() -> None:
    """A document that ends up in a log shows nothing that the client wrote."""
    assert "secret" not in repr(scan(b'{"secret":"secret"}'))


@pytest.mark.parametrize(
    "filler", [b"x", b"\\n", b"\\\\", "ü".encode(), b"\\u00fc", b"\\ud83d\\udea2", b'\\"']
)
def test_huge_string_is_one_token(filler: bytes) -> None:
    """A string of 12 MiB is scanned without recursion or backtracking, and its span is exact."""
    content = b'"' + filler * (LARGE_BYTES // len(filler)) + b'"'
    document = scan(b'{"messages":[{"content":' + content + b"}]}")

    (message,) = elements(document, document.members["messages"].value_span)
    span = members(document, message)["content"].value_span

    assert content == document.body[span.start : span.end]


def test_huge_broken_string_is_refused() -> None:
    """The search for the path of a fault behind 12 MiB ends as well."""
    with pytest.raises(BodyError, match=r"messages\[0\]\.content"):
        scan(b'{"messages":[{"content":"' + b"\\n" * (LARGE_BYTES // 2) + b'\\ud800"}]}')


def test_path_is_given_up_behind_too_many_tokens() -> None:
    """A fault behind a million numbers is refused at once, without its path."""
    with pytest.raises(BodyError, match=r"request: body: malformed JSON at byte 2000011"):
        scan(b'{"prompt":[' + b"1," * 1_000_000 + b"]}")


def test_long_arrays_of_numbers_have_spans() -> None:
    """Token ids are an array like any other."""
    document = scan(json.dumps({"prompt": list(range(5000))}).encode())

    spans = elements(document, document.members["prompt"].value_span)

    assert list(range(5000)) == [value(document, span) for span in spans]


def test_spans_of_the_wrong_kind_are_a_mistake() -> None:
    """Asking a number for its elements or members is the caller's error."""
    document = scan(b'{"n":1}')
    span = document.members["n"].value_span

    with pytest.raises(AssertionError, match="array"):
        elements(document, span)
    with pytest.raises(AssertionError, match="object"):
        members(document, span)
