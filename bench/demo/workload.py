"""
What the demonstration asks: a support agent's rules, last, and the questions of 40 customers.

The rules and the JSON tool protocol are one system message of about 1,100 tokens behind the conversation,
where agents put what a model must heed. The texts lie in `data/`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from openai.types.chat import (
    ChatCompletionAssistantMessageParam,
    ChatCompletionMessageParam,
    ChatCompletionSystemMessageParam,
    ChatCompletionUserMessageParam,
)

DATA: Final = Path(__file__).parent / "data"

Messages: TypeAlias = tuple[ChatCompletionMessageParam, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation."""

    role: Literal["user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class Question:
    """A customer's question, at its end, and what was said before it."""

    id: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """The agent's rules and its customers' questions."""

    rules: str
    questions: tuple[Question, ...]

    def messages(self, question: Question) -> Messages:
        """Return the request's messages: the conversation, then the rules."""
        rules: ChatCompletionSystemMessageParam = {"role": "system", "content": self.rules}
        return (*(_message(turn) for turn in question.turns), rules)


def load_workload(folder: Path = DATA) -> Workload:
    """Read `rules.md` and `questions.jsonl`."""
    lines = (folder / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    return Workload(
        rules=(folder / "rules.md").read_text(encoding="utf-8").strip(),
        questions=tuple(_question(line) for line in lines),
    )


def arm_order(place: int) -> tuple[int, int]:
    """
    Return the order of the two arms for the question at `place`: first, second; second, first; and so on.

    In ABBA order what drifts evenly, such as the machine's temperature, meets both arms alike.
    """
    return (0, 1) if place % 2 == 0 else (1, 0)


def numbered(questions: Sequence[Question], number: int) -> Question:
    """
    Return one of the questions, in turn, made unlike every other by a ticket's number at its very beginning.

    An engine's prefix cache would otherwise know a question that is asked a second time.
    """
    question = questions[number % len(questions)]
    first, *others = question.turns
    marked = Turn(first.role, f"Ticket {number}. {first.content}")
    return Question(f"{question.id}#{number}", (marked, *others))


def _message(turn: Turn) -> ChatCompletionUserMessageParam | ChatCompletionAssistantMessageParam:
    if turn.role == "user":
        return {"role": "user", "content": turn.content}
    return {"role": "assistant", "content": turn.content}


def _question(line: str) -> Question:
    record = json.loads(line)
    turns = tuple(Turn(message["role"], message["content"]) for message in record["messages"])
    return Question(record["id"], turns)
