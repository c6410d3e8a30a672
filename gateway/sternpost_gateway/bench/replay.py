"""
Workloads from a user's own traffic: a log of request bodies, or a trace of lengths and hashes.

Logs are those that `sternpost lint` reads. A trace, as Mooncake publishes them, is JSON Lines with
`timestamp` (milliseconds), `input_length`, `output_length` and `hash_ids`, one for each block of 512 tokens;
prompts are made up so that equal ids give equal text.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Final

from sternpost_core.errors import OperatingError
from sternpost_gateway.bench.recipes import WARM_UPS
from sternpost_gateway.bench.texts import text
from sternpost_gateway.bench.workload import Arrivals, Call, Session, Traced, Workload
from sternpost_gateway.lint.log import LineCounts, Log

TRACE_KEYS: Final = frozenset({"timestamp", "input_length", "output_length", "hash_ids"})
TRACE_BLOCK_TOKENS: Final = 512

SET_BY_BENCH: Final = ("stream", "stream_options")
"""Members of a logged body that the bench sets itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """
    At most `requests_max` requests are replayed; `answer_tokens`, where given, bounds their answers.

    `scale` shrinks a trace's lengths, for models that take no prompts as long as those it was made with.
    """

    requests_max: int
    arrivals: Arrivals
    answer_tokens: int | None = None
    scale: float = 1.0
    seed: int = 0


def load_replay(path: Path, options: ReplayOptions) -> Workload:
    """
    Read a log or a trace as a workload.

    Raises:
        OperatingError: it cannot be read, no line of it is a request, or a log is to come at traced moments.
    """
    trace = is_trace(path)
    if isinstance(options.arrivals, Traced) and not trace:
        raise OperatingError(
            f"--arrivals: 'traced' is not allowed for {path}, a log, whose lines tell no moments; "
            "allowed: closed, poisson, bursts"
        )
    sessions = tuple(_trace_sessions(path, options) if trace else _log_sessions(path, options))
    if not sessions:
        raise OperatingError(f"{path}: no line holds a request that can be replayed")
    hello = Call({"messages": [{"role": "user", "content": "Good morning."}], "max_tokens": 1})
    return Workload(
        name=path.name.partition(".")[0],
        about="a trace, replayed with made-up texts" if trace else "a log, replayed",
        sessions=sessions,
        warm_ups=(hello,) * WARM_UPS,
        arrivals=options.arrivals,
    )


def is_trace(path: Path) -> bool:
    """
    Tell whether a file's first line is that of a trace.

    Raises:
        OperatingError: the file cannot be read.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            first = json.loads(file.readline())
    except OSError as error:
        raise OperatingError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError:
        return False
    return isinstance(first, Mapping) and set(first) >= TRACE_KEYS


def _log_sessions(path: Path, options: ReplayOptions) -> Iterator[Session]:
    with ExitStack() as stack:
        log = Log([str(path)], None, stack, sys.stdin.buffer, requests_max=options.requests_max)
        for number, (_, request) in enumerate(log.requests(LineCounts(), lambda read: None)):
            body = json.loads(request.document.body)
            kept = {key: value for key, value in body.items() if key not in SET_BY_BENCH}
            bound = {} if options.answer_tokens is None else {"max_tokens": options.answer_tokens}
            yield Session(f"l{number}", (Call({**kept, **bound}, request.path),))


def _trace_sessions(path: Path, options: ReplayOptions) -> Iterator[Session]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(islice(file, options.requests_max), start=1):
            try:
                entry = json.loads(line)
                call = _traced_call(entry, options)
                at = _moment(entry)
            except (ValueError, LookupError, TypeError, OverflowError) as error:
                raise OperatingError(f"{path}:{number}: no line of a trace ({error!r})") from error
            yield Session(f"m{number}", (call,), at if isinstance(options.arrivals, Traced) else None)


def _moment(entry: Mapping[str, Any]) -> float:
    """Return when a trace's request was sent, in seconds."""
    at = float(entry["timestamp"]) / 1000
    if not math.isfinite(at):
        raise ValueError(f"timestamp {entry['timestamp']}")
    return at


def _traced_call(entry: Mapping[str, Any], options: ReplayOptions) -> Call:
    left, words = int(entry["input_length"]), []
    for block in entry["hash_ids"]:
        tokens = min(left, TRACE_BLOCK_TOKENS)
        words.append(text(Random(f"{options.seed} {block}"), max(1, int(tokens * options.scale))))
        left -= tokens
    answer = options.answer_tokens or max(1, int(entry["output_length"] * options.scale))
    message = {"role": "user", "content": " ".join(words)}
    return Call({"messages": [message], "max_tokens": answer, "temperature": 0})
