"""
The tasks whose answers are compared: prompts made from data files, the same ones for the same seed.

A task's prompt is a middle, then a fixed tail with the instructions, then the answer's beginning. The right
answer is one of a few that are known beforehand. Tasks that bind have it in a row of the tail that the
middle points at. Prompts for testing have no sentence in common with the owner's
texts, which a calibration uses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Any, Final

from sternpost_core.errors import OperatingError

DATA: Final = Path(__file__).parent / "data"

TASKS: Final = ("capital", "sentiment", "weekday", "shelf", "contact")
"""The tasks that are measured, each a file among the data."""

FURTHER: Final = ("tool", "found", "given")
"""
Tasks that are measured where they are asked for: which tool a message needs, where in a text a thing stands,
and whether a text gives an answer at all.
"""

ENDING: Final = frozenset({"found", "given"})
"""Tasks whose tail allows one word and then the end."""

DRAWS_MAX: Final = 100
"""So often a prompt is drawn again, on average, where it would repeat one; then the data give no more."""


class Split(StrEnum):
    """What prompts are for: measuring, or calibration by a tail's owner."""

    TEST = "test"
    OWNER = "owner"


@dataclass(frozen=True, slots=True)
class Prompt:
    """What differs from request to request, and the right answer to it."""

    id: str
    middle: str
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """
    A fixed tail, and what prompts are made from.

    `subjects` are, per split, the words that decide the answer, each with its answer; `templates` the
    sentences around them; `words` fill the other gaps. `cue` begins the answer.
    """

    name: str
    binds: bool
    tail: str
    cue: str
    subjects: Mapping[Split, Mapping[str, str]]
    templates: Mapping[Split, Sequence[str]]
    words: Mapping[str, Sequence[str]]

    @property
    def answers(self) -> tuple[str, ...]:
        """The answers among which one is chosen, in the order of the data."""
        return tuple(dict.fromkeys(self.subjects[Split.TEST].values()))


def load_task(name: str, folder: Path = DATA) -> Task:
    """Read a task's file."""
    document: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return Task(
        name=document["name"],
        binds=document["binds"],
        tail="\n".join(document["tail"]),
        cue=document["cue"],
        subjects={split: document["subjects"][split] for split in Split},
        templates={split: document["templates"][split] for split in Split},
        words=document["words"],
    )


def make_prompts(task: Task, split: Split, count: int, seed: int) -> tuple[Prompt, ...]:
    """
    Make different prompts, whose subjects take turns.

    Raises:
        OperatingError: the task's data do not give so many.
    """
    chance = Random(f"{seed} {task.name} {split}")
    subjects = list(task.subjects[split].items())
    chance.shuffle(subjects)
    middles: dict[str, str] = {}
    for draw in range(count * DRAWS_MAX):
        if len(middles) == count:
            break
        subject, answer = subjects[draw % len(subjects)]
        middles.setdefault(_fill(task, chance.choice(task.templates[split]), subject, chance), answer)
    if len(middles) < count:
        raise OperatingError(
            f"task {task.name}: its data give {len(middles)} prompts for {split}, not {count}"
        )
    return tuple(
        Prompt(f"{task.name}-{split}-{number}", middle, answer)
        for number, (middle, answer) in enumerate(middles.items())
    )


def _fill(task: Task, template: str, subject: str, chance: Random) -> str:
    words = {gap: chance.choice(choices) for gap, choices in task.words.items()}
    middle = template.format(subject=subject, **words)
    return middle[0].upper() + middle[1:]
