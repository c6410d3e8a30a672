"""The generic calibration set: its form, its mix, and what it must not hold."""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from itertools import cycle
from typing import Any

import pytest

LANGUAGES = ("ar", "de", "en", "es", "fr", "hi", "it", "ja", "pl", "pt", "ru", "tr", "zh")

LINE_BYTES_MAX = 2048

# The fewest and the most characters of one text, or of one message of a conversation.
CHARACTERS = {"question": (12, 320), "document": (100, 640), "conversation": (6, 240), "code": (100, 640)}

Row = Mapping[str, Any]


@lru_cache
def lines() -> tuple[str, ...]:
    """Return the set's lines as the package ships them."""
    data = files("sternpost_engine").joinpath("data/generic.jsonl").read_bytes()
    return tuple(data.decode("utf-8").removesuffix("\n").split("\n"))


@lru_cache
def rows() -> tuple[Row, ...]:
    """Return the set's lines, parsed."""
    return tuple(json.loads(line) for line in lines())


def texts(row: Row) -> list[str]:
    """Return the row's text, or a conversation's one text per message."""
    return [message["content"] for message in row["messages"]] if "messages" in row else [row["text"]]


def normalised(text: str) -> str:
    """Return the text's letters and digits alone, without case."""
    return "".join(c for c in unicodedata.normalize("NFKC", text).casefold() if c.isalnum())


def roles(row: Row) -> list[str]:
    """Return who speaks, message by message."""
    return [message["role"] for message in row["messages"]]


def of_kind(kind: str) -> list[Row]:
    """Return the rows of one kind."""
    return [row for row in rows() if row["kind"] == kind]


def written_in(script: str, row: Row) -> bool:
    """Return whether a third of the row's letters, or more, are of the script that Unicode names so."""
    names = [unicodedata.name(c) for text in texts(row) for c in text if c.isalpha()]
    return 3 * sum(name.startswith(script) for name in names) >= len(names)


def faulty(sound: Sequence[bool]) -> list[int]:
    """Return the numbers, from 1, of the lines that are not sound."""
    return [number for number, good in enumerate(sound, start=1) if not good]


def test_lines_are_plain_json() -> None:
    """Each line is one object, written as it is read: in UTF-8, without escapes of letters."""
    written = [json.dumps(row, ensure_ascii=False) for row in rows()]

    assert [] == faulty([line == again for line, again in zip(lines(), written, strict=True)])


def test_rows_hold_what_their_kind_needs() -> None:
    """A conversation has messages, every other kind a text, and nothing else is there."""
    content = [{"messages"} if row["kind"] == "conversation" else {"text"} for row in rows()]

    assert [] == faulty(
        [{"kind", "language"} | c == set(row) for c, row in zip(content, rows(), strict=True)]
    )


@pytest.mark.parametrize(
    ("kind", "fewest"),
    [
        pytest.param("question", 64, id="questions"),
        pytest.param("document", 72, id="documents"),
        pytest.param("conversation", 28, id="conversations"),
        pytest.param("code", 32, id="code"),
    ],
)
def test_each_kind_is_there(kind: str, fewest: int) -> None:
    """A mean needs enough texts of its kind."""
    assert fewest <= len(of_kind(kind))


def test_no_other_kind_is_there() -> None:
    """A kind that nothing reads would be calibrated by nobody."""
    assert set(CHARACTERS) == {row["kind"] for row in rows()}


@pytest.mark.parametrize("kind", ["question", "document", "conversation"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_each_language_asks_writes_and_talks(language: str, kind: str) -> None:
    """Every language has its part in each kind but code."""
    assert language in {row["language"] for row in of_kind(kind)}


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_language_has_its_share(language: str) -> None:
    """No language stands for itself with a line or two."""
    assert 4 <= sum(row["language"] == language for row in rows())


def test_about_half_is_english() -> None:
    """English leads, and does not crowd the others out."""
    share = Counter(row["language"] for row in rows())["en"] / len(rows())

    assert 0.5 <= share <= 0.6


@pytest.mark.parametrize(
    ("language", "script"),
    [
        pytest.param("ar", "ARABIC", id="arabic"),
        pytest.param("hi", "DEVANAGARI", id="hindi"),
        pytest.param("ja", "HIRAGANA", id="japanese"),
        pytest.param("ru", "CYRILLIC", id="russian"),
        pytest.param("zh", "CJK", id="chinese"),
    ],
)
def test_languages_are_in_their_script(language: str, script: str) -> None:
    """A line under a language of another script is written in it, by a third of its letters or more."""
    assert [] == faulty([row["language"] != language or written_in(script, row) for row in rows()])


def test_no_text_comes_twice() -> None:
    """A text that came twice would weigh twice: messages count one by one, spelling aside."""
    counts = Counter(normalised(text) for row in rows() for text in texts(row))

    assert [] == [text for text, count in counts.items() if count > 1]


def test_every_text_says_something() -> None:
    """No text is empty, or has blanks around it."""
    assert [] == faulty(
        [all(normalised(text) and text == text.strip() for text in texts(row)) for row in rows()]
    )


def test_texts_keep_to_the_size_of_their_kind() -> None:
    """A text is as long as its kind's texts are, so that lengths can be composed from counts."""
    sizes = [(CHARACTERS[row["kind"]], [len(text) for text in texts(row)]) for row in rows()]

    assert [] == faulty([all(least <= n <= most for n in lengths) for (least, most), lengths in sizes])


def test_no_line_is_too_long() -> None:
    """A line can be looked at, and never fills a prompt alone."""
    assert [] == faulty([len(line.encode()) <= LINE_BYTES_MAX for line in lines()])


def test_conversations_alternate_and_end_with_the_user() -> None:
    """A tail follows a user's message, so a conversation stops at one."""
    expected = [
        [role for role, _ in zip(cycle(("user", "assistant")), row["messages"], strict=False)]
        for row in of_kind("conversation")
    ]

    assert expected == [roles(row) for row in of_kind("conversation")]
    assert {"user"} == {roles(row)[-1] for row in of_kind("conversation")}
    assert {3, 5, 7} == {len(roles(row)) for row in of_kind("conversation")}


def test_no_one_can_be_reached() -> None:
    """No mail address, web address or home folder is in the set: nobody is named by accident."""
    reachable = re.compile(r"\w@\w+\.\w|\w://\w|/home/|/Users/|www\.", re.IGNORECASE)

    assert [] == faulty([not any(reachable.search(text) for text in texts(row)) for row in rows()])
