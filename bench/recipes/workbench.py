"""One task's prompts, computed exactly and by every recipe."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch

from bench.quality.tasks import Prompt, Split, Task, make_prompts
from bench.recipes.recipes import Origin, Recipe
from sternpost_core.errors import OperatingError
from sternpost_engine.calibrate.budget import Budget
from sternpost_engine.calibrate.frame import make_frame
from sternpost_engine.calibrate.laboratory import Laboratory
from sternpost_engine.calibrate.material import Material, make_marker
from sternpost_engine.calibrate.progress import Progress
from sternpost_engine.calibrate.sources import encode_sources
from sternpost_engine.calibration import Texts
from sternpost_engine.encoding import TokenizerEncoder
from sternpost_engine.reference import ReferenceModel, prefill
from sternpost_engine.texts import CalibrationTexts, Text, generic_texts

SAMPLES: Final = 8
"""Middles per length and mean: the engine's own default."""

EXACT: Final = "exact"
"""The name of what is computed in full, in float32."""

logger = logging.getLogger("bench.recipes")


@dataclass(frozen=True, slots=True)
class Reading:
    """
    What one way of computing made of one prompt.

    `answers` are the log-probabilities of the candidates' first tokens, `kl` the divergence from the exact
    distribution there, in nats. `computed` counts tokens behind the prefix.
    """

    answers: tuple[float, ...]
    kl: float
    computed: int


@dataclass(frozen=True, slots=True)
class Models:
    """One model in float32 and in bfloat16, and its tokenizer."""

    exact: ReferenceModel
    rough: ReferenceModel
    tokenizer: Any


@dataclass(frozen=True, slots=True)
class Workbench:
    """A task's laboratories by the origin of their calibration, and the tokens of its answers."""

    laboratories: Mapping[Origin, Laboratory]
    tokenizer: Any
    cue: tuple[int, ...]
    candidates: tuple[int, ...]

    def read(self, prompt: Prompt, recipes: Sequence[Recipe]) -> dict[str, Reading]:
        """Compute a prompt in full, and by every recipe; the readings by name."""
        middle = tuple(self.tokenizer.encode(prompt.middle, add_special_tokens=False))
        laboratory = self.laboratories[Origin.GENERIC]
        frame, model = laboratory.frame, laboratory.exact
        front = frame.front(middle)
        cache = model.new_cache(len(front) + len(frame.tail) + len(self.cue))
        exact = _logs(prefill(model, cache, front, frame.tail, answer=self.cue))
        whole = len(front) + len(frame.tail) - frame.insert
        readings = {EXACT: self._reading(exact, exact, whole)}
        for recipe in recipes:
            logits, computed = self.laboratories[recipe.origin].compute(recipe.arm, cache, middle, self.cue)
            readings[recipe.name] = self._reading(exact, _logs(logits), computed)
        return readings

    def _reading(self, exact: torch.Tensor, logs: torch.Tensor, computed: int) -> Reading:
        kl = float((exact.exp() * (exact - logs)).sum().clamp_min(0.0))
        return Reading(tuple(logs[list(self.candidates)].tolist()), kl, computed)


@dataclass(frozen=True, slots=True)
class TextsAsTheyAre:
    """Gives each text whole, whatever length is asked for."""

    texts: tuple[tuple[int, ...], ...]

    def middle(self, kind: str, number: int, tokens: int) -> Sequence[int]:
        """Return the `number`th text."""
        return self.texts[number % len(self.texts)]


def make_workbench(
    models: Models,
    task: Task,
    owner: Sequence[Prompt],
    test: Sequence[Prompt],
    budget: Budget,
    bars: Progress,
) -> Workbench:
    """
    Encode a task's tail over the generic set, and over the owner's prompts.

    Raises:
        OperatingError: two of the task's answers begin with the same token.
    """
    tokenizer = models.tokenizer
    encoder = TokenizerEncoder(tokenizer, logger)
    frame = make_frame(tokenizer, task.tail)
    middles = tuple(tuple(encoder.text(prompt.middle)) for prompt in test)
    generic = CalibrationTexts(generic_texts(), encoder)
    owners = CalibrationTexts([Text("", prompt.middle) for prompt in owner], encoder)
    natural = TextsAsTheyAre(tuple(tuple(encoder.text(prompt.middle)) for prompt in owner))
    sources: dict[Origin, tuple[Texts, CalibrationTexts]] = {
        Origin.GENERIC: (generic, generic),
        Origin.OWNER: (owners, owners),
        Origin.AS_THEY_ARE: (natural, owners),
    }
    laboratories = {}
    for origin, (texts, words) in sources.items():
        marker = make_marker(encoder, words, frame.tail)
        material = Material(frame, texts, marker, middles)
        laboratories[origin] = Laboratory(
            exact=models.exact,
            rough=models.rough,
            frame=frame,
            tails=encode_sources(models.exact, material, SAMPLES, budget, bars).tails,
            marker=marker,
            anchor=0,
            answer_tokens=1,
            stop_tokens=frozenset(),
        )
    cue = tuple(encoder.text(task.cue))
    return Workbench(laboratories, tokenizer, cue, first_tokens(tokenizer, task))


def first_tokens(tokenizer: Any, task: Task) -> tuple[int, ...]:
    """
    Return the first token of each of the task's answers, as it follows the cue.

    Raises:
        OperatingError: two answers share it, so that it does not tell them apart.
    """
    tokens = tuple(tokenizer.encode(f" {answer}", add_special_tokens=False)[0] for answer in task.answers)
    if len(set(tokens)) < len(tokens):
        raise OperatingError(f"task {task.name}: two of its answers begin with the same token")
    return tokens


def prompts_of(task: Task, owner: int, test: int, seed: int) -> tuple[tuple[Prompt, ...], tuple[Prompt, ...]]:
    """Return the owner's prompts, and those to test on."""
    return make_prompts(task, Split.OWNER, owner, seed), make_prompts(task, Split.TEST, test, seed)


def to_record(readings: Mapping[str, Reading]) -> dict[str, Any]:
    """Return what is written of one prompt."""
    return {name: asdict(reading) for name, reading in readings.items()}


def from_record(record: Mapping[str, Any]) -> dict[str, Reading]:
    """Return what was written of one prompt."""
    return {
        name: Reading(tuple(found["answers"]), found["kl"], found["computed"])
        for name, found in record.items()
    }


def _logs(logits: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(logits[-1].to(torch.float32), dim=-1)
