"""Token ids of texts and conversations, as prompts have them, whatever the model's chat template is."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_engine.encoding import TokenizerEncoder
from sternpost_engine.vocabulary import Vocabulary
from sternpost_fakes.chat_tokenizer import OPENING, SPECIALS, ChatTokenizer, SentenceTokenizer

LOGGER = logging.getLogger("test")


def encoder_of(tokenizer: ChatTokenizer | None = None) -> TokenizerEncoder:
    """Return an encoder over a tokenizer of characters."""
    return TokenizerEncoder(tokenizer or ChatTokenizer(), LOGGER)


def said(*contents: str) -> list[Mapping[str, Any]]:
    """Return a conversation that the user begins."""
    return [
        {"role": ("user", "assistant")[number % 2], "content": content}
        for number, content in enumerate(contents)
    ]


def text_of(ids: Sequence[int]) -> str:
    """Read token ids."""
    return ChatTokenizer().decode(ids)


def test_text_is_encoded_without_special_tokens() -> None:
    """A middle stands inside a prompt: nothing begins or ends with it."""
    assert "Where is my order?" == text_of(encoder_of().text("Where is my order?"))


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        pytest.param(["Hello"], "Hello", id="one-message"),
        pytest.param([""], "", id="empty"),
        pytest.param(["\n"], "\n", id="as-the-template-itself-has"),
        pytest.param(
            ["Hi", "Yes?", "Bye"],
            "Hi<|im_end|>\n<|im_start|>assistant\nYes?<|im_end|>\n<|im_start|>user\nBye",
            id="three-messages",
        ),
        pytest.param(
            ["Hi", "Yes?"], "Hi<|im_end|>\n<|im_start|>assistant\nYes?", id="that-ends-with-the-assistant"
        ),
    ],
)
def test_conversation_is_what_stands_between_its_first_and_last_words(
    contents: list[str], expected: str
) -> None:
    """What the template puts around every conversation belongs to the scaffold."""
    assert expected == text_of(encoder_of().conversation(said(*contents)))


@given(contents=st.lists(st.text("user\n <|", max_size=6), min_size=1, max_size=5))
def test_conversation_put_into_an_empty_one_is_the_whole(contents: list[str]) -> None:
    """Whatever is said: even what looks like the template's own text comes out at its place."""
    tokenizer = ChatTokenizer()
    middle = list(encoder_of().conversation(said(*contents)))
    empty, whole = (
        tokenizer.encode(tokenizer.rendered(said(*texts)), add_special_tokens=False)
        for texts in ([""], contents)
    )

    assert whole in [[*empty[:at], *middle, *empty[at:]] for at in range(len(empty) + 1)]
    assert len(empty) > len(OPENING) - 20, "the opening is part of the empty conversation"


class OwnError(Exception):
    """What a tokenizer with messages of its own raises."""


class OwnTokenizer(ChatTokenizer):
    """Refuses every conversation in a way of its own."""

    def rendered(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Refuse."""
        raise OwnError("conversations must be of the right form")


def test_conversation_that_is_refused_in_any_way_is_taken_as_its_texts() -> None:
    """An engine starts, and calibrates, whatever its tokenizer makes of a text."""
    assert "Hi\n\nYes?" == text_of(encoder_of(OwnTokenizer()).conversation(said("Hi", "Yes?")))


def test_refused_conversation_is_taken_as_its_texts(caplog: pytest.LogCaptureFixture) -> None:
    """A template may raise anything; the log names the kind of error, and nothing that was said."""
    caplog.set_level(logging.INFO, "test")
    messages = [{"role": "user", "content": "one secret"}, {"role": "user", "content": "two secrets"}]

    assert "one secret\n\ntwo secrets" == text_of(encoder_of().conversation(messages))
    assert ["the chat template refuses a calibration text: ValueError"] == caplog.messages


@pytest.mark.parametrize(
    ("token", "text"),
    [
        pytest.param(ord("a"), "a", id="letter"),
        pytest.param(ord(" "), " ", id="space"),
        pytest.param(SPECIALS["<|im_start|>"], "", id="special"),
        pytest.param(SPECIALS["<|begin|>"], "", id="first-special"),
    ],
)
def test_text_of_a_token(token: int, text: str) -> None:
    """A special token's name is no text: it would be taken for a word."""
    assert text == encoder_of().token_text(token)


@pytest.mark.parametrize(
    ("token", "text"),
    [
        pytest.param(0, " the", id="begins-a-word"),
        pytest.param(2, "s", id="goes-on"),
        pytest.param(3, "\n", id="byte"),
    ],
)
def test_space_in_front_of_a_word_is_kept(token: int, text: str) -> None:
    """Some decoders drop it from a token by itself, as if a sentence began there."""
    assert text == encoder_of(SentenceTokenizer()).token_text(token)


def test_token_that_the_tokenizer_does_not_know_has_no_text() -> None:
    """A model's vocabulary may be larger, and prompts of token ids come from clients."""
    assert "" == encoder_of(SentenceTokenizer()).token_text(4)


def test_words_of_such_a_vocabulary_do_not_run_together() -> None:
    """Without its space, a word would be one with the word before."""
    words = Vocabulary(encoder_of(SentenceTokenizer()).token_text).words([0, 1, 2, 0])

    assert ["the", "refunds", "the"] == [word.text for word in words]
