"""What calibration and matching take from a tokenizer, in tokens that can be told apart at a glance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sternpost_engine.calibration import Calibrator, Texts
from sternpost_engine.marking import Marker
from sternpost_engine.vocabulary import Vocabulary

TEXT_TOKENS: Final = range(1_000_000, 1_010_000)
"""The tokens that middles for calibration are made of, and nothing else."""

PROMPT_TOKENS_MAX: Final = 320
"""An engine's limit that leaves out the longest middles, and cuts the longer ones."""


class CountedTexts:
    """Gives middles of exactly the tokens asked for, up to `tokens_max`, and notes what was asked."""

    def __init__(self, tokens_max: int = len(TEXT_TOKENS)) -> None:
        self.asked: list[tuple[str, int, int]] = []
        self._tokens_max = tokens_max

    def middle(self, kind: str, number: int, tokens: int) -> Sequence[int]:
        """Return the first of the text tokens."""
        self.asked.append((kind, number, tokens))
        return TEXT_TOKENS[: min(tokens, self._tokens_max)]


def make_calibrator(
    *, samples: int = 2, prompt_tokens_max: int = PROMPT_TOKENS_MAX, texts: Texts | None = None
) -> Calibrator:
    """Return a calibrator over texts that never end."""
    return Calibrator(texts or CountedTexts(), samples=samples, prompt_tokens_max=prompt_tokens_max)


def make_marker() -> Marker:
    """Return a marker to which every token is a word of its own, and none is common."""
    return Marker(Vocabulary(lambda token: f" word{token}"), frozenset())
