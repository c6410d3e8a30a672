"""
What the scheduler's side can do with an engine's tokenizer: calibrate tails, and match their words.

Both are left out, with one line in the log, where the engine runs without a tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm.logger import init_logger

from sternpost_engine.calibration import Calibrator
from sternpost_engine.encoding import TokenizerEncoder
from sternpost_engine.marking import Marker
from sternpost_engine.matching import common_words
from sternpost_engine.settings import EngineSettings
from sternpost_engine.texts import CalibrationTexts, generic_texts, read_texts
from sternpost_engine.vocabulary import Vocabulary

logger = init_logger("vllm.sternpost")


@dataclass(frozen=True, slots=True)
class Language:
    """A calibrator and a marker that share one tokenizer."""

    calibrator: Calibrator
    marker: Marker


def read_language(vllm_config: Any, settings: EngineSettings) -> Language | None:
    """
    Load the tokenizer and the calibration texts.

    Raises:
        SettingsError: when the folder of an owner's texts cannot be used.
    """
    from vllm.tokenizers import cached_tokenizer_from_config

    tokenizer = cached_tokenizer_from_config(vllm_config.model_config)
    if tokenizer is None:
        logger.warning("no tokenizer in this engine: tails are neither calibrated nor matched")
        return None
    folder = settings.calibration_texts
    texts = read_texts(Path(folder)) if folder else generic_texts()
    encoder = TokenizerEncoder(tokenizer, logger)
    source = CalibrationTexts(texts, encoder)
    vocabulary = Vocabulary(encoder.token_text)

    def words(tokens: Sequence[int]) -> list[str]:
        return [word.text for word in vocabulary.words(tokens)]

    logger.info("calibration: %d %s texts", len(texts), "owner's" if folder else "generic")
    return Language(
        Calibrator(
            source,
            samples=settings.calibration_samples,
            prompt_tokens_max=vllm_config.model_config.max_model_len - 1,
        ),
        Marker(vocabulary, common_words(source.words_of_each(words))),
    )
