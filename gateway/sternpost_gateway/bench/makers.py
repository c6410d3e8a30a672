"""
The shapes of workloads: functions that make sessions from a number generator and a few sizes in tokens.

What is fixed in every request comes from `fixed`, which is the same in every repetition; what differs comes
from `chance`. Answers of earlier turns are made up, so that every target gets the same bytes whatever it
answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from sternpost_gateway.bench.agents import Faults, agent_bodies
from sternpost_gateway.bench.texts import rules, text
from sternpost_gateway.bench.workload import Call, Session

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Chances:
    """Two number generators: for what is the same in every repetition, and for what is not."""

    fixed: Random
    changing: Random


@dataclass(frozen=True, slots=True)
class Made:
    """What a shape makes: sessions to measure, and calls of the same shape to warm up with."""

    sessions: tuple[Session, ...]
    warm_ups: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Count:
    """How many sessions are made, how many calls to warm up with, and how long answers are at most."""

    sessions: int
    warm_ups: int
    answer_tokens: int


Maker = Callable[..., Made]
"""Takes `Chances`, `Count`, and the sizes of its shape by name."""


def conversations(
    chances: Chances,
    count: Count,
    *,
    prefix_tokens: int = 0,
    tail_tokens: int = 0,
    turns: int = 1,
    user_tokens: int = 80,
    reply_tokens: int = 60,
    calls_tools: int = 0,
) -> Made:
    """Make conversations between a fixed prefix and a fixed tail, each turn with all that was said before."""
    prefix, tail = _fixed(chances.fixed, prefix_tokens, tail_tokens)

    def calls(turns_made: int) -> Iterator[Call]:
        said: list[Message] = []
        for _ in range(turns_made):
            said.append(_user(chances.changing, user_tokens))
            yield _call([*prefix, *said, *tail], count)
            said += _reply(chances.changing, reply_tokens, calls_tools=bool(calls_tools))

    return _made("c", count, lambda: calls(turns), lambda: next(calls(1)))


def repetitions(
    chances: Chances, count: Count, *, tail_tokens: int, user_tokens: int = 80, times: int = 2
) -> Made:
    """Make requests that are asked again, word for word; only the repetitions are measured."""
    _, tail = _fixed(chances.fixed, 0, tail_tokens)

    def calls() -> list[Call]:
        body = _call([_user(chances.changing, user_tokens), *tail], count).body
        return [Call(body, measured=bool(number)) for number in range(times)]

    return _made("r", count, calls, lambda: calls()[0])


def reasoning(
    chances: Chances,
    count: Count,
    *,
    problem_tokens: int,
    step_tokens: int,
    steps: int,
    back_every: int,
    back_steps: int,
) -> Made:
    """
    Make chains of thought that go back: every `back_every` steps the last `back_steps` are thrown away.

    Each request holds the problem and the steps that still stand, as a client sends it that stops a model,
    judges its step and lets it go on.
    """

    def calls() -> Iterator[Call]:
        chance = chances.changing
        problem = {"role": "user", "content": f"Solve this step by step. {text(chance, problem_tokens)}"}
        standing: list[str] = []
        for number in range(1, steps + 1):
            messages = [problem]
            if standing:
                messages += [_assistant("\n".join(standing)), {"role": "user", "content": "Go on."}]
            yield _call(messages, count)
            if number % back_every == 0:
                del standing[-back_steps:]
                standing.append(f"Wait, that was wrong. {text(chance, step_tokens)}")
            else:
                standing.append(f"Step {number}. {text(chance, step_tokens)}")

    return _made("t", count, calls, lambda: next(calls()))


def documents(
    chances: Chances, count: Count, *, document_tokens: int, question_tokens: int, questions: int
) -> Made:
    """Make questions about long documents, several about each, the document in front."""

    def calls() -> Iterator[Call]:
        chance = chances.changing
        document = text(chance, document_tokens)
        for _ in range(questions):
            question = f"{document}\n\nQuestion: what is said of {text(chance, question_tokens)}"
            yield _call([{"role": "user", "content": question}], count)

    return _made("d", count, calls, lambda: next(calls()))


def trimmed(
    chances: Chances,
    count: Count,
    *,
    prefix_tokens: int,
    turns: int,
    kept_messages: int,
    user_tokens: int,
    reply_tokens: int,
) -> Made:
    """Make conversations whose oldest messages are dropped at each turn, as no prefix cache can follow."""
    prefix, _ = _fixed(chances.fixed, prefix_tokens, 0)

    def calls(turns_made: int) -> Iterator[Call]:
        chance = chances.changing
        said = [
            message for _ in range(kept_messages) for message in _exchange(chance, user_tokens, reply_tokens)
        ]
        for _ in range(turns_made):
            said = [*said[-2 * kept_messages :], _user(chance, user_tokens)]
            yield _call([*prefix, *said], count)
            said = [*said, *_reply(chance, reply_tokens)]

    return _made("m", count, lambda: calls(turns), lambda: next(calls(1)))


def shared_prefixes(
    chances: Chances, count: Count, *, prefixes: int, prefix_tokens: int, user_tokens: int, in_a_row: int
) -> Made:
    """Make requests behind a few long prefixes, `in_a_row` behind each before it is the next one's turn."""
    chance = chances.changing
    systems = [{"role": "system", "content": text(chance, prefix_tokens)} for _ in range(prefixes)]
    warm = {"role": "system", "content": text(chance, prefix_tokens)}
    sessions = tuple(
        Session(
            f"p{number}",
            (_call([systems[number // in_a_row % prefixes], _user(chance, user_tokens)], count),),
        )
        for number in range(count.sessions)
    )
    return Made(
        sessions, tuple(_call([warm, _user(chance, user_tokens)], count) for _ in range(count.warm_ups))
    )


def agents(
    chances: Chances,
    count: Count,
    *,
    clock: int = 1,
    nonce: int = 1,
    tool_order: int = 1,
    key_order: int = 1,
    tail: int = 1,
) -> Made:
    """Make requests of agents, each with the faults that are switched on; a session is one request."""
    faults = Faults(
        clock=bool(clock),
        nonce=bool(nonce),
        tool_order=bool(tool_order),
        key_order=bool(key_order),
        tail=bool(tail),
    )
    wanted = count.sessions + count.warm_ups
    bodies = agent_bodies(wanted, chances.changing.getrandbits(32), faults)
    # An engine without a parser of tool calls refuses any other choice.
    more = {"max_tokens": count.answer_tokens, "tool_choice": "none"}
    calls = [Call({**json.loads(body), **more}) for body in bodies]
    sessions = tuple(Session(f"a{number}", (call,)) for number, call in enumerate(calls[: count.sessions]))
    return Made(sessions, tuple(calls[count.sessions :]))


MAKERS: Final[Mapping[str, Maker]] = {
    "agents": agents,
    "conversations": conversations,
    "documents": documents,
    "reasoning": reasoning,
    "repetitions": repetitions,
    "shared_prefixes": shared_prefixes,
    "trimmed": trimmed,
}
"""The shapes by the name that they have in files."""


def _made(
    letter: str,
    count: Count,
    calls: Callable[[], Iterator[Call] | Sequence[Call]],
    warm_up: Callable[[], Call],
) -> Made:
    # What warms up is made first, so that a longer workload begins as a shorter one does.
    warm_ups = tuple(warm_up() for _ in range(count.warm_ups))
    sessions = tuple(Session(f"{letter}{number}", tuple(calls())) for number in range(count.sessions))
    return Made(sessions, warm_ups)


def _call(messages: Sequence[Mapping[str, Any]], count: Count) -> Call:
    return Call({"messages": list(messages), "max_tokens": count.answer_tokens, "temperature": 0})


def _fixed(chance: Random, prefix_tokens: int, tail_tokens: int) -> tuple[list[Message], list[Message]]:
    """Return the prefix and the tail, each as a list of no message or one."""
    prefix = [{"role": "system", "content": text(chance, prefix_tokens)}] if prefix_tokens else []
    tail = [{"role": "system", "content": rules(chance, tail_tokens)}] if tail_tokens else []
    return prefix, tail


def _user(chance: Random, tokens: int) -> Message:
    return {"role": "user", "content": text(chance, tokens)}


def _assistant(content: str) -> Message:
    return {"role": "assistant", "content": content}


def _reply(chance: Random, tokens: int, *, calls_tools: bool = False) -> list[Message]:
    """Return what an assistant says; with tools, its call and the tool's result, as text."""
    if not calls_tools:
        return [_assistant(text(chance, tokens))]
    call = f'{{"tool": "look_up", "about": "{text(chance, tokens // 2)}"}}'
    return [_assistant(call), {"role": "user", "content": f"Tool result: {text(chance, tokens)}"}]


def _exchange(chance: Random, user_tokens: int, reply_tokens: int) -> list[Message]:
    return [_user(chance, user_tokens), *_reply(chance, reply_tokens)]
