"""
Stress for one real engine: many streams at once that build, read, go away and change epochs, by chance.

Meant for a tiny model whose splices are exact after any middle, so that every answer can be compared with
the one that full prefill gives.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from sternpost_running.engine import RunningEngine

ANSWER_TOKENS = 24
"""So many tokens each answer has: it grows into another block more often than not."""

SCAFFOLD_TOKENS = 12
TAIL_LENGTHS = (256, 300, 513, 700)
MIDDLE_LENGTHS = (1, 9, 40, 150, 600)
VOCABULARY = range(1000, 40_000)


@dataclass(frozen=True, slots=True)
class Case:
    """One prompt: a scaffold and tail of the same number, and a middle between them."""

    tail: int
    middle: int


@dataclass(slots=True)
class Tally:
    """What became of the requests: reasons of finished ones, and everything that should not be."""

    reasons: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    gone: int = 0
    probes: int = 0


class Stress:
    """
    A run of chance on one engine.

    `tails` is how many there are, more than the engine's pool holds. Random choices come from `seed`, but the
    threads' order does not.
    """

    def __init__(self, engine: RunningEngine, *, tails: int = 10, middles: int = 6, seed: int = 0) -> None:
        self.tally = Tally()
        self._engine = engine
        self._random = random.Random(seed)
        self._scaffold = self._tokens(SCAFFOLD_TOKENS)
        self._tails = [self._tail(TAIL_LENGTHS[number % len(TAIL_LENGTHS)]) for number in range(tails)]
        self._middles = [self._tokens(MIDDLE_LENGTHS[n % len(MIDDLE_LENGTHS)]) for n in range(middles)]
        self._expected: dict[Case, str] = {}
        self._epoch = 0
        self._lock = threading.Lock()

    def expect(self, streams: int) -> None:
        """Learn from full prefill what each prompt's answer is, before anything is stored."""
        cases = [
            Case(tail, middle) for tail in range(len(self._tails)) for middle in range(len(self._middles))
        ]
        with ThreadPoolExecutor(streams) as pool:
            self._expected = dict(zip(cases, pool.map(self._exact, cases), strict=True))

    def _exact(self, case: Case) -> str:
        answer = self._engine.post("/v1/completions", self._body(case, {"op": "off"}, salt="exact"))
        text: str = answer["choices"][0]["text"]
        return text

    def worker(self, seed: int, stop: threading.Event) -> None:
        """Do one thing after the other until told to stop."""
        chance = random.Random(seed)
        while not stop.is_set():
            case = Case(chance.randrange(len(self._tails)), chance.randrange(len(self._middles)))
            kind = chance.random()
            if kind < 0.15:
                self._build(case.tail, calibrated=chance.random() < 0.3)
            elif kind < 0.155:
                self._bump()
            elif kind < 0.17:
                self._engine.client.post("/reset_prefix_cache")
            elif kind < 0.28:
                self._probe(case)
            else:
                self._read(case, chance)

    def _read(self, case: Case, chance: random.Random) -> None:
        hint = {
            "op": "read",
            "tail_tokens": len(self._tails[case.tail]),
            "last": chance.choice((1, 2, 32)),
            "head": chance.choice((0, 0, 5)),
            "epoch": self._epoch,
            "correction": self._correction(case.tail),
        }
        body = self._body(case, hint, salt="")
        leave_after = chance.randrange(ANSWER_TOKENS) if chance.random() < 0.25 else None
        self._stream(case, body, leave_after)

    def _stream(self, case: Case, body: Mapping[str, Any], leave_after: int | None) -> None:
        """Read an answer to its end, or go away after some of its tokens."""
        sent = {**body, "stream": True, "stream_options": {"include_usage": True}}
        text, reason = "", "cut"
        with self._engine.client.stream("POST", "/v1/completions", json=sent) as response:
            if response.status_code != 200:
                self._wrong(f"status {response.status_code}")
                return
            for count, event in enumerate(_events(response.iter_lines())):
                if leave_after is not None and count >= leave_after:
                    with self._lock:
                        self.tally.gone += 1
                    return
                text += "".join(choice["text"] for choice in event["choices"])
                if event.get("usage"):
                    reason = event["usage"]["prompt_tokens_details"]["sternpost"]["reason"]
        self._compare(case, text, reason)

    def _probe(self, case: Case) -> None:
        """Full prefill's answer stays what it was, whatever goes on beside it."""
        self._compare(case, self._exact(case), "off")
        with self._lock:
            self.tally.probes += 1

    def _build(self, tail: int, *, calibrated: bool) -> None:
        hint = {
            "op": "build",
            "prefix_tokens": SCAFFOLD_TOKENS,
            "tail_tokens": len(self._tails[tail]),
            "insert": SCAFFOLD_TOKENS // 2,
            "epoch": self._epoch,
            "correction": self._correction(tail),
        }
        prompt = [*self._scaffold, *self._tails[tail]]
        answer = self._engine.post(
            "/v1/completions", self._request(prompt, hint, salt="") | {"max_tokens": 1}
        )
        reason = answer["usage"]["prompt_tokens_details"]["sternpost"]["reason"]
        with self._lock:
            self.tally.reasons[f"build {reason}"] += 1

    def _correction(self, tail: int) -> str:
        return "calibrated" if tail % 4 == 0 else "none"

    def _bump(self) -> None:
        with self._lock:
            self._epoch += 1

    def _compare(self, case: Case, text: str, reason: str) -> None:
        with self._lock:
            self.tally.reasons[reason] += 1
        if text != self._expected[case]:
            self._wrong(f"{case}, {reason}: {text!r} instead of {self._expected[case]!r}")

    def _wrong(self, what: str) -> None:
        with self._lock:
            self.tally.wrong.append(what)

    def _body(self, case: Case, hint: Mapping[str, Any], *, salt: str) -> dict[str, Any]:
        prompt = [*self._scaffold, *self._middles[case.middle], *self._tails[case.tail]]
        return self._request(prompt, hint, salt=salt)

    def _request(self, prompt: Sequence[int], hint: Mapping[str, Any], *, salt: str) -> dict[str, Any]:
        body = {
            "model": self._engine.model,
            "prompt": list(prompt),
            "max_tokens": ANSWER_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "kv_transfer_params": {"sternpost": {"v": 1, "scaffold": "s", **hint}},
        }
        return body | ({"cache_salt": salt} if salt else {})

    def _tokens(self, count: int) -> list[int]:
        return self._random.choices(VOCABULARY, k=count)

    def _tail(self, count: int) -> list[int]:
        tail = self._tokens(count)
        return [*tail[:-1], tail[0]]


def _events(lines: Any) -> Any:
    for line in lines:
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))
