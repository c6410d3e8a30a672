"""Rows of the demonstration, made short."""

from __future__ import annotations

from bench.demo.kill import KillRun
from bench.demo.rows import Answer, Arm, Phase, Row


def make_answer(
    *,
    ttft: float = 0.1,
    total: float = 0.5,
    prefix: int = 0,
    suffix: int = 0,
    computed: int = 100,
    text: str = "Hello.",
    engine: str = "engine-a",
) -> Answer:
    """Return an answer whose prompt has as many tokens as its sources add up to."""
    return Answer(
        ttft_seconds=ttft,
        total_seconds=total,
        prompt_tokens=prefix + suffix + computed,
        prefix_tokens=prefix,
        suffix_tokens=suffix,
        computed_tokens=computed,
        reason="hit" if suffix else "not_asked",
        engine=engine,
        text=text,
    )


def make_row(
    arm: Arm,
    answer: Answer | None,
    *,
    question: str = "q",
    phase: Phase = Phase.MEASURED,
    started: float = 0.0,
) -> Row:
    """Return a row; without an answer it is a failure."""
    error = "" if answer else "APIError: gone"
    return Row(phase=phase, arm=arm, question=question, started_seconds=started, answer=answer, error=error)


def load_row(started: float, *, suffix: int, failed: bool = False, ttft: float = 0.2) -> Row:
    """Return a row of the load on the gateway."""
    answer = None if failed else make_answer(ttft=ttft, suffix=suffix, computed=100)
    return make_row(Arm.STERNPOST, answer, phase=Phase.LOAD, started=started)


def return_row(started: float, *, suffix: int) -> Row:
    """Return a row of the time after the kill level was taken back."""
    return make_row(
        Arm.STERNPOST, make_answer(suffix=suffix, computed=100), phase=Phase.RETURN, started=started
    )


def make_kill_run(*rows: Row) -> KillRun:
    """Return a run whose switch was asked for at 10 s, answered at 10.5 s and taken back at 20 s."""
    default = (load_row(9.0, suffix=900), load_row(11.0, suffix=0), return_row(20.5, suffix=900))
    return KillRun(rows=rows or default, engaged=10.0, answered=10.5, cleared=20.0)
