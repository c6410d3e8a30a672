"""Calibration texts: an owner's folder, and the middles that are made of texts."""

import json
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.errors import SettingsError
from sternpost_engine.texts import (
    JOINT,
    TEXT_CHARACTERS_MAX,
    TEXTS_MAX,
    CalibrationTexts,
    Text,
    generic_texts,
    read_texts,
)

USER, ASSISTANT = {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}


class CharacterEncoder:
    """One token per character; keeps the texts and conversations that it was given."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.conversations: list[Sequence[Mapping[str, Any]]] = []

    def text(self, text: str) -> Sequence[int]:
        """Return the characters' codes."""
        self.texts.append(text)
        return [ord(character) for character in text]

    def conversation(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[int]:
        """Return the codes of all that is said."""
        self.conversations.append(list(messages))
        return [ord(character) for message in messages for character in message["content"]]


def texts_of(*texts: Text, encoder: CharacterEncoder | None = None) -> CalibrationTexts:
    """Return the middles' source over these texts."""
    return CalibrationTexts(texts, encoder or CharacterEncoder())


def middle(source: CalibrationTexts, kind: str = "", number: int = 0, tokens: int = 1000) -> str:
    """Return a middle as text."""
    return "".join(map(chr, source.middle(kind, number, tokens)))


def talk(*contents: str) -> Text:
    """Return a conversation that the user begins and ends."""
    roles = cycle(("user", "assistant"))
    return Text(
        "conversation",
        tuple({"role": role, "content": content} for role, content in zip(roles, contents, strict=False)),
    )


# -- middles -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        pytest.param(3, "aaa", id="a-text-cut"),
        pytest.param(4, "aaaa", id="a-text-whole"),
        pytest.param(5, "aaaa" + JOINT[:1], id="joined"),
        pytest.param(8, "aaaa" + JOINT + "bb", id="with-the-next"),
        pytest.param(99, "aaaa" + JOINT + "bbbb", id="all-there-is"),
        pytest.param(0, "", id="nothing-asked"),
        pytest.param(-1, "", id="less-than-nothing-asked"),
    ],
)
def test_middle_is_as_long_as_asked_or_as_the_texts_allow(tokens: int, expected: str) -> None:
    """Texts follow each other until there is enough."""
    assert expected == middle(texts_of(Text("a", "aaaa"), Text("a", "bbbb")), tokens=tokens)


def test_without_texts_there_is_no_middle() -> None:
    """The caller calibrates nothing then."""
    assert "" == middle(texts_of())
    assert () == texts_of().kinds


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        pytest.param("code", ["c", "c", "c", "c"], id="a-kind"),
        # The texts without a kind have their turn too, and come first by their name.
        pytest.param("", ["u", "c", "d", "u"], id="no-kind"),
        pytest.param("poem", ["u", "c", "d", "u"], id="a-kind-without-texts"),
    ],
)
def test_kinds_are_kept_apart_or_take_turns(kind: str, expected: list[str]) -> None:
    """A tail of one kind of traffic is calibrated with that kind alone, any other with all."""
    source = texts_of(Text("document", "d"), Text("code", "c"), Text("", "u"))

    assert expected == [middle(source, kind, number) for number in range(4)]
    assert ("", "code", "document") == source.kinds


def test_few_samples_are_a_fair_choice_of_many_texts() -> None:
    """Neighbouring numbers begin with texts that lie apart, and eight of them with eight texts."""
    source = texts_of(*(Text("a", chr(0x100 + number)) for number in range(100)))

    first = [ord(middle(source, number=number)[0]) - 0x100 for number in range(8)]

    assert 8 == len(set(first))
    assert max(first) - min(first) > 40


@given(
    lengths=st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(1, 30)), min_size=1, max_size=6),
    kind=st.sampled_from(["", "a", "b", "c"]),
    number=st.integers(0, 63),
    tokens=st.integers(1, 200),
)
def test_middle_is_the_same_every_time(
    lengths: list[tuple[str, int]], kind: str, number: int, tokens: int
) -> None:
    """A sample that is computed again is the same sample; it is never longer than asked, and never empty."""
    texts = [Text(kind, str(place) * length) for place, (kind, length) in enumerate(lengths)]

    made = [texts_of(*texts).middle(kind, number, tokens) for _ in range(2)]

    assert made[0] == made[1]
    assert 0 < len(made[0]) <= tokens


def test_each_text_of_a_middle_is_encoded_once() -> None:
    """The scheduler waits meanwhile; a long middle of short texts must not cost the square of its length."""
    encoder = CharacterEncoder()
    source = texts_of(*(Text("a", str(number)) for number in range(10)), encoder=encoder)

    made = middle(source, tokens=16)

    assert JOINT.join("012345") == made
    assert ["0", *(JOINT + str(number) for number in range(1, 6))] == encoder.texts


@pytest.mark.parametrize(
    ("tokens", "rendered"),
    [
        pytest.param(2, [1], id="one-is-enough"),
        pytest.param(16, [1, 2, 4, 8], id="eight-of-them"),
        pytest.param(999, [1, 2, 4, 8, 10], id="all-there-are"),
    ],
)
def test_conversations_are_rendered_a_few_times(tokens: int, rendered: list[int]) -> None:
    """Twice as many each time; each has two tokens besides the last one's question."""
    encoder = CharacterEncoder()

    texts_of(*[talk("q", "a", "?")] * 10, encoder=encoder).middle("conversation", 0, tokens)

    assert rendered == [len(messages) // 2 for messages in encoder.conversations]


@given(
    turns=st.lists(st.integers(0, 2), min_size=1, max_size=5),
    number=st.integers(0, 9),
    tokens=st.integers(1, 60),
)
def test_joined_conversations_alternate(turns: list[int], number: int, tokens: int) -> None:
    """A conversation's last question makes way for the next one's first, or two would follow each other."""
    encoder = CharacterEncoder()
    talks = [talk(*["q", "a"] * count, "end?") for count in turns]

    texts_of(*talks, encoder=encoder).middle("conversation", number, tokens)

    for messages in encoder.conversations:
        roles = [message["role"] for message in messages]
        assert [("user", "assistant")[place % 2] for place in range(len(roles))] == roles
        assert "user" == roles[-1]


@pytest.mark.parametrize(
    ("number", "expected"),
    [pytest.param(0, "plain" + JOINT + "text", id="texts"), pytest.param(1, "Hi", id="conversations")],
)
def test_texts_and_conversations_of_one_kind_are_not_mixed(number: int, expected: str) -> None:
    """A middle is the one or the other, by what it begins with."""
    source = texts_of(Text("x", "plain"), Text("x", (dict(USER, content="Hi"),)), Text("x", "text"))

    assert expected == middle(source, "x", number)


def test_words_of_each_text_are_counted_apart() -> None:
    """What is common among texts is told by how many of them have it."""
    source = texts_of(Text("a", "xy"), talk("z"), Text("a", "w"))

    assert [["x", "y"], ["w"], ["z"]] == source.words_of_each(lambda ids: [chr(token) for token in ids])


def test_generic_set_makes_middles_of_every_length() -> None:
    """Of every kind that it has, for as many samples as a setting may ask."""
    source = CalibrationTexts(generic_texts(), CharacterEncoder())

    assert ("code", "conversation", "document", "question") == source.kinds
    for kind in source.kinds:
        for number in (0, 7, 63):
            assert 3000 == len(source.middle(kind, number, 3000))


# -- an owner's folder ----------------------------------------------------------------------------------


def write_lines(folder: Path, name: str, *items: object) -> None:
    """Write one JSON object a line; what is text is written as it is."""
    lines = [item if isinstance(item, str) else json.dumps(item) for item in items]
    (folder / name).write_text("\n".join(lines), encoding="utf-8")


def test_folder_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    """Lines of JSON, and one text a file, whose kind is the name's part before the first dot of two."""
    (tmp_path / "document.terms.txt").write_text("Terms", encoding="utf-8")
    (tmp_path / "plain.txt").write_text("Plain", encoding="utf-8")
    (tmp_path / "notes.md").write_text("not read", encoding="utf-8")
    write_lines(
        tmp_path,
        "all.jsonl",
        {"kind": "question", "text": "Why?"},
        "",
        {"text": "No kind"},
        {"messages": [USER, ASSISTANT, USER]},
        {"kind": "chat", "messages": [USER]},
    )

    assert (
        Text("question", "Why?"),
        Text("", "No kind"),
        Text("conversation", (USER, ASSISTANT, USER)),
        Text("chat", (USER,)),
        Text("document", "Terms"),
        Text("", "Plain"),
    ) == read_texts(tmp_path)


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["line-feed", "carriage-return"])
def test_lines_end_where_json_lines_end(tmp_path: Path, end: str) -> None:
    """And nowhere else: some writers leave a text's own separators of lines and pages as they are."""
    texts = ["one\u2028line", "another\x85line", "a\x0cpage"]
    lines = [f'{{"text": "{text}"}}' for text in texts[:2]] + [json.dumps({"text": texts[2]})]
    (tmp_path / "a.jsonl").write_bytes((end + end.join(lines) + end).encode())

    assert texts == [text.content for text in read_texts(tmp_path)]


@pytest.mark.parametrize(
    ("line", "value"),
    [
        pytest.param("{", "no JSON", id="no-json"),
        pytest.param("[" * 100_000, "no JSON", id="too-deep"),
        pytest.param([], "another object", id="list"),
        pytest.param({}, "another object", id="empty"),
        pytest.param({"text": ""}, "another object", id="empty-text"),
        pytest.param({"text": " \n"}, "another object", id="blank-text"),
        pytest.param({"text": 7}, "another object", id="number"),
        pytest.param({"text": "cut \ud83d"}, "another object", id="half-a-character"),
        pytest.param(
            {"messages": [{"role": "user", "content": "\udc00?"}]}, "another object", id="half-in-a-message"
        ),
        pytest.param({"messages": []}, "another object", id="no-messages"),
        pytest.param({"messages": "Why?"}, "another object", id="messages-as-text"),
        pytest.param({"messages": ["Why?"]}, "another object", id="message-as-text"),
        pytest.param({"messages": [USER, ASSISTANT]}, "another object", id="assistant-has-the-last-word"),
        pytest.param({"messages": [{"role": "tool", "content": ""}, USER]}, "another object", id="role"),
        pytest.param({"messages": [{"role": "user"}]}, "another object", id="no-content"),
        pytest.param({"messages": [{"role": "user", "content": ["Why?"]}]}, "another object", id="parts"),
    ],
)
def test_line_that_is_no_text_is_named(tmp_path: Path, line: object, value: str) -> None:
    """By its file and number, with what is allowed, and without what it says."""
    write_lines(tmp_path, "mine.jsonl", {"text": "fine"}, line)

    with pytest.raises(SettingsError) as caught:
        read_texts(tmp_path)

    allowed = 'an object with "text", or with "messages" that end with one of the user\'s'
    assert [f"mine.jsonl:2: {value} is not allowed; allowed: {allowed}"] == [
        str(fault) for fault in caught.value.faults
    ]


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({}, id="empty"),
        pytest.param({"notes.md": "text"}, id="other-files"),
        pytest.param({"a.jsonl": "", "b.txt": "", "c.txt": " \n"}, id="empty-files"),
    ],
)
def test_folder_without_texts_is_named(tmp_path: Path, files: Mapping[str, str]) -> None:
    """An engine that silently calibrated nothing would look like one that does."""
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="utf-8")

    with pytest.raises(SettingsError, match=r"a folder with \*\.jsonl or \*\.txt files that are not empty"):
        read_texts(tmp_path)


def test_missing_folder_is_named(tmp_path: Path) -> None:
    """With its path, as it was given."""
    with pytest.raises(SettingsError) as caught:
        read_texts(tmp_path / "gone")

    assert [(str(tmp_path / "gone"), "a folder of texts")] == [
        (fault.value, fault.allowed) for fault in caught.value.faults
    ]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_file_that_is_not_text_is_named(tmp_path: Path, name: str) -> None:
    """A file in another encoding would otherwise end the engine's start with a traceback."""
    (tmp_path / name).write_bytes(b"\xff\xfe\x00")

    with pytest.raises(SettingsError, match=rf"{name}: UnicodeDecodeError .* a file of UTF-8 text"):
        read_texts(tmp_path)


def test_folder_in_a_texts_place_is_named(tmp_path: Path) -> None:
    """It cannot be read."""
    (tmp_path / "a.txt").mkdir()

    with pytest.raises(SettingsError, match=r"a\.txt: IsADirectoryError"):
        read_texts(tmp_path)


def test_only_so_many_texts_are_read(tmp_path: Path) -> None:
    """More would only make the engine's start slow."""
    write_lines(tmp_path, "many.jsonl", *({"text": str(number)} for number in range(TEXTS_MAX + 1)))

    texts = read_texts(tmp_path)

    assert (TEXTS_MAX, str(TEXTS_MAX - 1)) == (len(texts), texts[-1].content)


@pytest.mark.parametrize("name", ["long.txt", "long.jsonl"])
def test_long_text_is_cut(tmp_path: Path, name: str) -> None:
    """No middle needs more."""
    long = "x" * (TEXT_CHARACTERS_MAX + 1)
    (tmp_path / name).write_text(long if name.endswith("txt") else json.dumps({"text": long}))

    assert [TEXT_CHARACTERS_MAX] == [len(text.content) for text in read_texts(tmp_path)]
