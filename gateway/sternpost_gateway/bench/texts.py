"""Sentences made by a seed: texts of a wanted length that no two prompts share."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

PEOPLE: Final = ("the harbour master", "my neighbour", "a driver", "the night nurse", "our buyer")
VERBS: Final = ("checks", "repairs", "orders", "moves", "paints", "measures", "stores", "returns")
THINGS: Final = ("the pump", "a window", "the invoice", "two crates", "the engine", "a ladder", "the list")
PLACES: Final = ("behind the hall", "near the gate", "on the second floor", "by the river", "in the yard")
TIMES: Final = ("before noon", "every week", "after the storm", "since March", "at the weekend")

TOKENS_PER_WORD: Final = 1.47
"""Of these sentences, with their figures and punctuation, in the small model's tokens."""

TOKENS_PER_WORD_OF_RULES: Final = 1.6
"""The same of rules, each of which has a number and a line end."""


def sentences(chance: Random) -> Iterator[str]:
    """Yield sentences without end."""
    while True:
        choices = (chance.choice(words) for words in (PEOPLE, VERBS, THINGS, PLACES, TIMES))
        person, verb, thing, place, time = choices
        yield f"{person.capitalize()} {verb} {thing} {place} {time}, number {chance.randint(10, 9999)}."


def text(chance: Random, tokens: int) -> str:
    """Return whole sentences of about so many of the small model's tokens."""
    words_wanted = tokens / TOKENS_PER_WORD
    taken: list[str] = []
    words = 0
    for sentence in sentences(chance):
        if words >= words_wanted:
            break
        taken.append(sentence)
        words += len(sentence.split())
    return " ".join(taken)


def rules(chance: Random, tokens: int) -> str:
    """Return numbered rules of about so many tokens, as they stand at the end of an agent's prompt."""
    lines = ["Follow these rules in every answer:"]
    number = 0
    while sum(len(line.split()) for line in lines) < tokens / TOKENS_PER_WORD_OF_RULES:
        number += 1
        lines.append(f"{number}. {next(sentences(chance))}")
    return "\n".join([*lines, "Answer the user's latest message in one sentence."])
