"""The prompt that an engine makes of a body, and its tokens."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from sternpost_core.errors import OperatingError, SettingsError
from sternpost_core.jsonspan import Document, scan
from sternpost_gateway.lint.encoders import (
    TOKEN_BYTES,
    EstimateEncoder,
    FunctionEncoder,
    RememberingEncoder,
    named_encoder,
    pack,
    ranks_encoder,
)
from sternpost_gateway.lint.model_tokenizer import TemplateRefusal, load_model_tokenizer
from sternpost_gateway.lint.prompt import PlainPrompts, TemplatePrompts, Unrenderable

OLD_LOADER = "ignore:open_binary is deprecated:DeprecationWarning"
"""What the package of encodings loads its files by."""

NOW = datetime(2026, 3, 2)

START, END = "<|start|>", "<|end|>"


class LetterTokenizer:
    """A letter is a token, and so is a mark; where it `merges`, a mark takes the space behind it along."""

    marks = frozenset({START, END})

    def __init__(self, *, merges: bool = False) -> None:
        self.encoded: list[str] = []
        self._merges = merges

    def ids(self, text: str, *, opened: bool) -> Sequence[int]:
        """Return a token for each mark and each letter."""
        self.encoded.append(text)
        behind = " ?" if self._merges else ""
        pieces = re.findall(f"(?:{re.escape(START)}|{re.escape(END)}){behind}|.", text, re.DOTALL)
        return [7] * opened + [100 + sum(map(ord, piece)) for piece in pieces]

    def render(self, messages: Any, tools: Any, *, closed: bool, options: Any) -> str:
        """Render the messages; a conversation that ends with the assistant is refused."""
        if messages and messages[-1]["role"] == "assistant":
            raise TemplateRefusal
        shown = json.dumps(tools) if tools else ""
        text = "".join(f"{START}{message['role']}\n{json.dumps(message)}{END}" for message in messages)
        return shown + text + (START if closed else "") + "".join(options)


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


class StrictTokenizer(LetterTokenizer):
    """A template that takes one system message only."""

    def render(self, messages: Any, tools: Any, *, closed: bool, options: Any) -> str:
        """Refuse a second."""
        if [message["role"] for message in messages].count("system") > 1:
            raise TemplateRefusal
        return super().render(messages, tools, closed=closed, options=options)


@pytest.mark.parametrize(
    ("tokenizer", "expected"),
    [pytest.param(LetterTokenizer(), True, id="taken"), pytest.param(StrictTokenizer(), False, id="refused")],
)
def test_the_template_says_where_lines_may_move(tokenizer: LetterTokenizer, expected: bool) -> None:
    """As the gateway finds out from the engine."""
    assert expected == TemplatePrompts(tokenizer, "letters").takes_later_system
    assert not PlainPrompts(EstimateEncoder()).takes_later_system


def test_the_tail_is_what_its_message_adds() -> None:
    """With the opening of the answer behind it."""
    messages = [{"role": "user", "content": "a"}, {"role": "system", "content": "rules"}]
    tail = f"{START}system\n{json.dumps(messages[1])}{END}{START}"

    assert len(LetterTokenizer().ids(tail, opened=False)) == prompts().tail_tokens(
        document(messages=messages)
    )


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


TEMPLATE = """{{ bos_token }}{% for message in messages %}
{% if message.role == "no" %}{{ raise_exception("no") }}{% endif %}
{% generation %}{{ message.role }}: {{ message.content | tojson }}{% endgeneration %};{% endfor %}
{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}>{% endif %}
{{- strftime_now("%Y") }}"""


def model_directory(folder: Path, **config: Any) -> Path:
    """Write a tokenizer of words and a template, and return their directory."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": {"content": "<s>"}, "chat_template": TEMPLATE, **config})
    )
    return folder


def test_a_model_is_read_from_its_directory(tmp_path: Path) -> None:
    """Its tokens, its marks, and its template with what hubs offer to templates."""
    model = load_model_tokenizer(model_directory(tmp_path), NOW)
    messages = [{"role": "user", "content": "<é>"}]

    assert [0, 3, 1, 2] == list(model.ids("a<s>b c", opened=False))
    assert {"<s>"} == model.marks
    assert '<s>user: "<é>";>2026' == model.render(messages, None, closed=True, options={})
    assert '<s>user: "<é>";[{"é": 1}]2026' == model.render(messages, [{"é": 1}], closed=False, options={})


@pytest.mark.parametrize(
    "messages",
    [pytest.param([{"role": "no"}], id="refused"), pytest.param([{"role": "a"}], id="without-content")],
)
def test_a_template_may_refuse(tmp_path: Path, messages: list[Any]) -> None:
    """On purpose or not."""
    with pytest.raises(TemplateRefusal):
        load_model_tokenizer(model_directory(tmp_path), NOW).render(messages, None, closed=True, options={})


@pytest.mark.parametrize(
    ("tools", "expected"),
    [pytest.param(None, "plain", id="no-tools"), pytest.param([{}], "tools", id="tools")],
)
def test_a_model_may_have_a_template_for_tools(tmp_path: Path, tools: Any, expected: str) -> None:
    """By its name."""
    templates = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    model = load_model_tokenizer(model_directory(tmp_path, chat_template=templates), NOW)

    assert expected == model.render([], tools, closed=True, options={})


def test_a_template_may_stand_in_a_file_of_its_own(tmp_path: Path) -> None:
    """Which counts before the configuration."""
    (model_directory(tmp_path) / "chat_template.jinja").write_text("own {{ enable_thinking }}")

    assert "own True" == load_model_tokenizer(tmp_path, NOW).render(
        [], None, closed=True, options={"enable_thinking": True}
    )


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        pytest.param("tokenizer.json", None, "holds no tokenizer.json", id="no-tokenizer"),
        pytest.param("tokenizer.json", "{", "tokenizer.json cannot be read", id="broken-tokenizer"),
        pytest.param("tokenizer_config.json", "{", "_config.json cannot be read", id="broken-config"),
        pytest.param("tokenizer_config.json", "{}", "holds no chat template", id="no-template"),
        pytest.param(
            "chat_template.jinja", "{% if", "the chat template cannot be read", id="broken-template"
        ),
    ],
)
def test_a_directory_without_a_model_is_named(
    tmp_path: Path, name: str, content: str | None, said: str
) -> None:
    """With what is missing, or wrong."""
    file = model_directory(tmp_path) / name
    if content is None:
        file.unlink()
    else:
        file.write_text(content)

    with pytest.raises(OperatingError, match=f"--model: .*{said}"):
        load_model_tokenizer(tmp_path, NOW)
