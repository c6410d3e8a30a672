"""The middles of a calibration, and what stands around them."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.errors import SettingsError
from sternpost_engine.calibrate.frame import Frame, closing_tokens, make_frame
from sternpost_engine.calibrate.middles import hold_out, read_middles, read_text
from sternpost_engine.texts import Text
from sternpost_fakes.tiny_folder import STRICT_TEMPLATE, byte_tokenizer

TAIL = "Answer in one word."

CLOSING_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "{% if not loop.last %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_end|>\n<|im_start|>assistant\n{% endif %}"
)
"""Closes a message only when another one or an answer follows it."""


def write_lines(path: Path, *lines: str) -> Path:
    """Write a file of lines, and return its path."""
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_held_out_middles_are_in_no_mean() -> None:
    """From the generic set, with some of every kind on both sides."""
    middles = read_middles(None, "", 16)

    kinds = {"question", "document", "conversation", "code"}
    assert (16, True) == (len(middles.test), middles.generic)
    assert not set(map(repr, middles.test)) & set(map(repr, middles.calibration))
    assert kinds == {text.kind for text in middles.test} == {text.kind for text in middles.calibration}


@given(count=st.integers(2, 60), wanted=st.integers(1, 80))
def test_every_text_is_on_one_side(count: int, wanted: int) -> None:
    """As many as are wanted are held out, but never more than half."""
    texts = [Text("", str(number)) for number in range(count)]

    calibration, test = hold_out(texts, wanted)

    assert min(wanted, count // 2) == len(test)
    assert sorted(map(repr, texts)) == sorted(map(repr, (*calibration, *test)))


def test_lines_of_text_are_middles(tmp_path: Path) -> None:
    """One a line; empty lines count for nothing."""
    path = write_lines(tmp_path / "middles.txt", "one", "", "two", "  three ", "four")

    middles = read_middles(path, "", 2)

    assert not middles.generic
    assert ["four", "one", "three", "two"] == sorted(
        str(text.content) for text in (*middles.calibration, *middles.test)
    )


def test_kind_chooses_lines(tmp_path: Path) -> None:
    """JSON Lines may hold several kinds, and conversations."""
    question = [json.dumps({"kind": "question", "text": str(number)}) for number in range(4)]
    talk = json.dumps({"messages": [{"role": "user", "content": "Hello"}]})
    path = write_lines(tmp_path / "middles.jsonl", *question, talk)

    middles = read_middles(path, "question", 1)

    assert (3, 1) == (len(middles.calibration), len(middles.test))


@pytest.mark.parametrize(
    ("name", "lines", "kind", "message"),
    [
        pytest.param("m.txt", ["one", "two"], "", r"--middles: .*m\.txt with 2 texts.*at least 4", id="few"),
        pytest.param("m.txt", [" "], "", r"--middles: .*m\.txt, which is empty", id="empty"),
        pytest.param("m.jsonl", ["{"], "", r"m\.jsonl:1: no JSON", id="not-json"),
        pytest.param("m.jsonl", ['{"txt": "a"}'], "", r"m\.jsonl:1: another object", id="other-key"),
        pytest.param("m.txt", list("abcd"), "code", r"--kind: 'code'.*no text has one", id="no-kinds"),
        pytest.param(
            "m.jsonl",
            ['{"kind": "question", "text": "a"}'],
            "code",
            r"--kind: 'code'.*one of question",
            id="another-kind",
        ),
    ],
)
def test_middles_that_cannot_be_used_are_refused(
    tmp_path: Path, name: str, lines: list[str], kind: str, message: str
) -> None:
    """With the flag or the line, and what is allowed."""
    path = write_lines(tmp_path / name, *lines)

    with pytest.raises(SettingsError, match=message):
        read_middles(path, kind, 2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"\xff\xfe\x00", "UnicodeDecodeError", id="not-utf-8"),
        pytest.param(b" \n", "which is empty", id="empty"),
    ],
)
def test_text_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    """The fault names the flag."""
    path = tmp_path / "tail.md"
    path.write_bytes(content)

    with pytest.raises(SettingsError, match=f"--tail: .*{message}"):
        read_text(path, "--tail")


@pytest.mark.parametrize("template", [None, CLOSING_TEMPLATE, ""], ids=["usual", "closing", "no-template"])
@pytest.mark.parametrize("prefix", ["", "Be kind."], ids=["no-prefix", "prefix"])
def test_frame_and_middle_are_the_rendered_prompt(template: str | None, prefix: str) -> None:
    """Whatever the template puts around a message."""
    tokenizer = byte_tokenizer() if template is None else byte_tokenizer(template or None)
    frame = make_frame(tokenizer, TAIL, prefix=prefix)

    prompt = tokenizer.decode([*frame.front(tokenizer.encode("Hello?")), *frame.tail])

    messages = [
        *([{"role": "system", "content": prefix}] if prefix else []),
        {"role": "user", "content": "Hello?"},
        {"role": "system", "content": TAIL},
    ]
    plain = f"{prefix}\n\n" if prefix else ""
    expected = (
        f"{plain}Hello?\n\n{TAIL}"
        if template == ""
        else tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    )
    assert expected == prompt


def test_tail_begins_at_its_message() -> None:
    """Where the template closes every message by itself, nothing of the user's message is the tail's."""
    tokenizer = byte_tokenizer()
    frame = make_frame(tokenizer, TAIL)

    assert f"<|im_start|>system\n{TAIL}<|im_end|>\n<|im_start|>assistant\n" == tokenizer.decode(frame.tail)
    assert "<|im_start|>user\n" == tokenizer.decode(frame.scaffold[: frame.insert])


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        pytest.param(f"{TAIL}\n\nNow.", "\n\nNow.<|im_end|>\n<|im_start|>assistant\n", id="last-paragraph"),
        pytest.param(TAIL, f"<|im_start|>system\n{TAIL}<|im_end|>\n<|im_start|>assistant\n", id="all-of-it"),
    ],
)
def test_closing_is_the_last_paragraph(tail: str, expected: str) -> None:
    """With the line before it, and what the template puts behind it."""
    tokenizer = byte_tokenizer()
    frame = make_frame(tokenizer, tail)

    count = closing_tokens(tokenizer, tail, frame)

    assert expected == tokenizer.decode(frame.tail[len(frame.tail) - count :])


def test_middle_goes_into_the_scaffold() -> None:
    """At its place, with what follows it."""
    assert (1, 7, 7, 2) == Frame((1, 2), 1, (3,)).front((7, 7))


def test_template_that_refuses_the_tail_is_named() -> None:
    """With what it said, and the flag that may help."""
    with pytest.raises(SettingsError, match=r"--tail-role: user, system \(the system message comes first\)"):
        make_frame(byte_tokenizer(STRICT_TEMPLATE), TAIL)


def test_tail_may_be_the_users() -> None:
    """For templates that take a system message in front alone."""
    frame = make_frame(byte_tokenizer(STRICT_TEMPLATE), TAIL, role="user")

    assert TAIL in byte_tokenizer().decode(frame.tail)
