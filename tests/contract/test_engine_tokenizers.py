"""vLLM's tokenizers that are not Hugging Face's, as calibration and matching ask them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from sternpost_engine.encoding import TokenizerEncoder
from sternpost_engine.vocabulary import Vocabulary
from sternpost_fakes.tekken_file import CONTROL_PLACES, CONTROL_TOKENS, write_tekken_file
from sternpost_fakes.vllm_modules import import_object

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> TokenizerEncoder:
    """Return an encoder over the tokenizer that vLLM takes for Mistral's models."""
    folder: Path = tmp_path_factory.mktemp("mistral")
    write_tekken_file(folder)
    tokenizer: Any = import_object("vllm.tokenizers.mistral:MistralTokenizer")
    return TokenizerEncoder(tokenizer.from_pretrained(str(folder)), logging.getLogger("test"))


def test_words_are_found(encoder: TokenizerEncoder) -> None:
    """An engine that could not find them would not start."""
    words = Vocabulary(encoder.token_text).words(encoder.text("Where is my order?"))

    assert ["where", "is", "my", "order"] == [word.text for word in words]


@pytest.mark.parametrize("token", [CONTROL_TOKENS.index("[INST]"), CONTROL_PLACES + 256])
def test_control_tokens_and_unknown_ones_have_no_text(encoder: TokenizerEncoder, token: int) -> None:
    """A prompt of token ids may hold either."""
    assert "" == encoder.token_text(token)


def test_conversation_has_control_tokens_between_its_messages(encoder: TokenizerEncoder) -> None:
    """As a prompt has them; this tokenizer would take their names for text."""
    talk = [("user", "Hi"), ("assistant", "Yes?"), ("user", "Bye")]

    tokens = encoder.conversation([{"role": role, "content": content} for role, content in talk])

    end, answer, ask = (CONTROL_TOKENS.index(name) for name in ("[/INST]", "</s>", "[INST]"))
    assert [*encoder.text("Hi"), end, *encoder.text("Yes?"), answer, ask, *encoder.text("Bye")] == [*tokens]
