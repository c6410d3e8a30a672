"""The prompt that an engine makes of a body, and its tokens."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sternpost_core.errors import OperatingError, SettingsError
from sternpost_core.jsonspan import Document, scan
from sternpost_gateway.lint.encoders import (
    TOKEN_BYTES,
    EstimateEncoder,
    FunctionEncoder,
    RememberingEncoder,
    load_tokenizer,
    named_encoder,
    pack,
    ranks_encoder,
)
from sternpost_gateway.lint.prompt import PlainPrompts, TemplatePrompts, Unrenderable

OLD_LOADER = "ignore:open_binary is deprecated:DeprecationWarning"
"""What the package of encodings loads its files by."""

START, END = "<|start|>", "<|end|>"


class LetterTokenizer:
    """A tokenizer as transformers has them: a letter is a token, or two where it `merges` over marks."""

    all_special_tokens = (START, END)

    def __init__(self, *, merges: bool = False) -> None:
        self.encoded: list[str] = []
        self._merges = merges

    def get_added_vocab(self) -> dict[str, int]:
        """Return the marks."""
        return {START: 1, END: 2}

    def encode(self, text: str, add_special_tokens: bool) -> Sequence[int]:
        """Return a token for each mark and each letter."""
        self.encoded.append(text)
        pieces = re.findall(f"{re.escape(START)}|{re.escape(END)}|.", text, re.DOTALL)
        if self._merges:
            pieces = re.findall(f"{re.escape(START)} ?|{re.escape(END)}|.", text, re.DOTALL)
        return [7] * add_special_tokens + [100 + sum(map(ord, piece)) for piece in pieces]

    def apply_chat_template(
        self, messages: Any, tools: Any, tokenize: bool, add_generation_prompt: bool, **options: Any
    ) -> str:
        """Render the messages; a conversation that ends with the assistant is refused."""
        assert not tokenize
        if messages and messages[-1]["role"] == "assistant":
            raise ValueError("no")
        shown = json.dumps(tools) if tools else ""
        text = "".join(f"{START}{message['role']}\n{json.dumps(message)}{END}" for message in messages)
        return shown + text + (START if add_generation_prompt else "") + "".join(options)


def document(**body: Any) -> Document:
    """Return a body."""
    return scan(json.dumps(body).encode())


def prompts() -> TemplatePrompts:
    """Return what renders by the template of letters."""
    return TemplatePrompts(LetterTokenizer(), "letters")


def rendered(**body: Any) -> str:
    """Return the text that a body is rendered to."""
    tokenizer = LetterTokenizer(merges=True)
    TemplatePrompts(tokenizer, "letters").tokens(document(**body))
    return tokenizer.encoded[-1]


@pytest.mark.parametrize("text", ["", "a", "abcd", "abcde", "é" * 3])
def test_the_estimate_takes_four_bytes_for_a_token(text: str) -> None:
    """Rounded up."""
    assert -(-len(text.encode()) // 4) == len(EstimateEncoder().encode(text)) // TOKEN_BYTES


def test_messages_are_encoded_one_by_one() -> None:
    """So that a message that was there before has the tokens that it had."""
    plain = PlainPrompts(EstimateEncoder())
    short = plain.tokens(document(messages=[{"role": "user", "content": "a"}]))
    longer = plain.tokens(
        document(messages=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    )

    assert longer.startswith(short)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"prompt": "abc"}, id="completion"),
        pytest.param({"instructions": "a", "input": "b"}, id="response"),
        pytest.param({"input": [{"role": "user", "content": "b"}]}, id="response-of-messages"),
        pytest.param({"messages": [3, {"content": None}]}, id="odd-messages"),
        pytest.param({"messages": []}, id="nothing"),
    ],
)
def test_every_kind_of_body_has_tokens_by_the_estimate(body: dict[str, Any]) -> None:
    """Whatever stands in the place of messages."""
    plain = PlainPrompts(EstimateEncoder())

    assert 0 == len(plain.tokens(document(**body))) % TOKEN_BYTES
    assert plain.tail_tokens(document(**body)) >= 0


def test_tools_reach_the_template_in_one_order() -> None:
    """The engine reads them into its own shape, so that the order of a tool's own members is lost."""
    one = {"type": "function", "function": {"name": "t", "parameters": {"b": 1, "a": 2}, "description": "d"}}
    other = {
        "function": {"parameters": {"b": 1, "a": 2}, "description": "d", "name": "t"},
        "type": "function",
    }
    another = {
        "type": "function",
        "function": {"name": "t", "parameters": {"a": 2, "b": 1}, "description": "d"},
    }
    texts = [rendered(messages=[], tools=[tool]) for tool in (one, other, another)]

    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        pytest.param(
            {"content": [{"type": "text", "text": "a"}, {"text": "b"}, 3]}, {"content": "a\nb"}, id="parts"
        ),
        pytest.param({"content": None}, {"content": ""}, id="nothing"),
        pytest.param({"content": "a", "tool_calls": []}, {"content": "a"}, id="no-calls"),
        pytest.param(
            {"content": "", "tool_calls": [{"function": {"name": "t", "arguments": '{"a": 1}'}}]},
            {"content": "", "tool_calls": [{"function": {"name": "t", "arguments": {"a": 1}}}]},
            id="arguments",
        ),
        pytest.param(
            {"content": "", "tool_calls": [{"function": {"name": "t", "arguments": "{"}}, 3]},
            {"content": "", "tool_calls": [{"function": {"name": "t", "arguments": "{"}}, 3]},
            id="no-arguments",
        ),
    ],
)
def test_messages_reach_the_template_as_the_engine_hands_them(
    message: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Text parts joined, arguments decoded."""
    text = rendered(messages=[{"role": "user", **message}])

    assert {"role": "user", **expected} == json.loads(text.removeprefix(f"{START}user\n").split(END)[0])


def test_instructions_are_the_first_system_message() -> None:
    """As the engine renders a response."""
    assert rendered(
        messages=[{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    ) == rendered(instructions="a", input="b")


def test_a_refused_conversation_is_told() -> None:
    """A template is a program, and it may refuse."""
    with pytest.raises(Unrenderable):
        prompts().tokens(document(messages=[{"role": "assistant", "content": "a"}]))


@pytest.mark.parametrize("merges", [True, False])
def test_texts_are_remembered_where_they_are_encoded_alike(merges: bool) -> None:
    """Split at the marks, if the tokenizer does not merge across them; else as a whole."""
    tokenizer = LetterTokenizer(merges=merges)
    found = TemplatePrompts(tokenizer, "letters")
    tokenizer.encoded.clear()
    messages = [{"role": "user", "content": "a"}]
    first = found.tokens(document(messages=messages))
    second = found.tokens(document(messages=[*messages, {"role": "user", "content": "b"}]))

    assert second.startswith(first[:-TOKEN_BYTES])
    assert merges == any(START in text and text != START for text in tokenizer.encoded)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        pytest.param([5, 6], [5, 6], id="tokens"),
        pytest.param("a", [7, 197], id="text-with-its-beginning"),
    ],
)
def test_a_plain_prompt_is_not_rendered(prompt: Any, expected: list[int]) -> None:
    """It goes to the tokenizer as it is."""
    assert pack(expected) == prompts().tokens(document(prompt=prompt))


def test_the_tail_is_what_its_message_adds() -> None:
    """With the opening of the answer behind it."""
    messages = [{"role": "user", "content": "a"}, {"role": "system", "content": "rules"}]
    tail = f"{START}system\n{json.dumps(messages[1])}{END}{START}"

    assert len(LetterTokenizer().encode(tail, False)) == prompts().tail_tokens(document(messages=messages))


def test_what_is_remembered_is_bounded() -> None:
    """The least recently used goes."""
    asked: list[str] = []

    def encode(text: str) -> list[int]:
        asked.append(text)
        return [1]

    encoder = RememberingEncoder(FunctionEncoder("f", encode), bytes_max=300)
    for text in ("a", "b", "a", "c", "a", "b"):
        encoder.encode(text)

    assert ["a", "b", "c", "b"] == asked


@pytest.mark.filterwarnings(OLD_LOADER)
def test_an_encoding_comes_from_a_package() -> None:
    """By its name."""
    encoder = named_encoder("o200k_base")

    assert ("o200k_base", pack([24912, 2375])) == (encoder.label, encoder.encode("hello world"))


@pytest.mark.filterwarnings(OLD_LOADER)
def test_an_unknown_encoding_names_those_that_are_known() -> None:
    """The error says what is allowed."""
    with pytest.raises(SettingsError, match=r"--encoding: 'x' is not allowed; allowed: .*o200k_base"):
        named_encoder("x")


def test_ranks_come_from_a_file(tmp_path: Path) -> None:
    """One token and its rank on each line."""
    tokens = [bytes([byte]) for byte in range(256)] + [b"ab"]
    lines = [f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(tokens)]
    (tmp_path / "my.tiktoken").write_text("\n".join(lines))
    encoder = ranks_encoder(tmp_path / "my.tiktoken")

    assert pack([256, 99]) == encoder.encode("abc")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        pytest.param(None, OperatingError, id="missing"),
        pytest.param("x", SettingsError, id="no-ranks"),
        pytest.param("!!! 1", SettingsError, id="no-base64"),
    ],
)
def test_a_file_without_ranks_is_named(tmp_path: Path, text: str | None, error: type[Exception]) -> None:
    """Whatever is wrong with it."""
    if text is not None:
        (tmp_path / "ranks").write_text(text)

    with pytest.raises(error, match="ranks"):
        ranks_encoder(tmp_path / "ranks")


@pytest.mark.parametrize("name", ["missing", "."])
def test_a_directory_without_a_tokenizer_is_named(tmp_path: Path, name: str) -> None:
    """Nothing is fetched from anywhere."""
    with pytest.raises(OperatingError, match="--model: "):
        load_tokenizer(tmp_path / name)
