"""What a calibration works with, in token ids: the frame of its prompts, texts, words, held-out middles."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import AutoTokenizer

from sternpost_core.errors import Fault, OperatingError, SettingsError
from sternpost_engine.calibrate.frame import Frame, closing_tokens, make_frame
from sternpost_engine.calibrate.middles import Middles, read_text
from sternpost_engine.calibrate.settings import Settings
from sternpost_engine.calibration import Texts
from sternpost_engine.encoding import TokenizerEncoder
from sternpost_engine.marking import Marker
from sternpost_engine.matching import common_words
from sternpost_engine.texts import CalibrationTexts
from sternpost_engine.vocabulary import Vocabulary

logger = logging.getLogger("sternpost.calibrate")


@dataclass(frozen=True, slots=True)
class Material:
    """
    The frame, the texts to calibrate over, the tail's words, and the middles to test on.

    `closing` is how many of the tail's last tokens its last paragraph takes.
    """

    frame: Frame
    texts: Texts
    marker: Marker
    test: tuple[tuple[int, ...], ...]
    closing: int = 0

    @property
    def longest(self) -> int:
        """The length of the longest front, prefix and middle, among the middles to test on."""
        return max(len(self.frame.front(middle)) for middle in self.test)


def load_tokenizer(settings: Settings) -> Any:
    """
    Load the model's tokenizer; nothing is fetched.

    Raises:
        OperatingError: when transformers cannot load it.
    """
    try:
        return AutoTokenizer.from_pretrained(settings.model, local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise OperatingError(
            f"transformers cannot load the tokenizer in {settings.model}: {error}"
        ) from error


def read_material(settings: Settings, tokenizer: Any, middles: Middles) -> Material:
    """
    Read tail and prefix, and encode the middles to test on.

    Raises:
        SettingsError: a file cannot be read, or the chat template does not take the tail.
    """
    tail = read_text(settings.tail, "--tail")
    prefix = read_text(settings.prefix, "--prefix") if settings.prefix else ""
    frame = make_frame(tokenizer, tail, prefix=prefix, role=settings.tail_role)
    encoder = TokenizerEncoder(tokenizer, logger)
    texts = CalibrationTexts(middles.calibration, encoder)
    held_out = [CalibrationTexts([text], encoder) for text in middles.test]
    test = tuple(tuple(one.middle("", 0, settings.middle_tokens_max)) for one in held_out)
    closing = closing_tokens(tokenizer, tail, frame, prefix=prefix, role=settings.tail_role)
    return Material(frame, texts, make_marker(encoder, texts, frame.tail), test, closing)


def check_lengths(settings: Settings, material: Material, positions: int) -> None:
    """
    Refuse prompts that are longer than the model's `positions`.

    Raises:
        SettingsError: which names the tail, or the anchor.
    """
    behind = len(material.frame.tail) + settings.answer_tokens
    if material.longest + behind > positions:
        value = f"{len(material.frame.tail)} tokens behind {material.longest} of prefix and middle"
        allowed = f"{positions} in all, with {settings.answer_tokens} of answer; see --middle-tokens-max"
        raise SettingsError("calibrate", [Fault("--tail", value, allowed)])
    if settings.anchor and not material.longest <= settings.anchor <= positions - behind:
        allowed = f"{material.longest} (the longest prefix and middle) to {positions - behind}, or 0"
        raise SettingsError("calibrate", [Fault("--anchor", str(settings.anchor), allowed)])


def make_marker(encoder: TokenizerEncoder, texts: CalibrationTexts, tail: Sequence[int]) -> Marker:
    """Return what knows the tail's words, as entry 0; those that most texts have point at nothing."""
    vocabulary = Vocabulary(encoder.token_text)

    def words(tokens: Sequence[int]) -> list[str]:
        return [word.text for word in vocabulary.words(tokens)]

    marker = Marker(vocabulary, common_words(texts.words_of_each(words)))
    marker.learn(0, tail)
    return marker
