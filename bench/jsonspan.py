"""Print how long scanning a chat body takes beside `json.loads`, as medians: `python bench/jsonspan.py`."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from sternpost_core.jsonspan import elements, members, scan

PARAGRAPH: Final = 'The harbour master said "wait".\nThe tide, it seems, was late again.\n'

SIZES: Final = {"5 KB": (5_000, 400), "40 KB": (40_000, 2_000), "4 MB": (4_000_000, 20_000)}
"""Bytes of the body and characters of one message."""

REPEATS_MIN: Final = 20
SECONDS_MIN: Final = 0.5


def main() -> None:
    """Print one line a size."""
    print(f"{'body':>6} {'json.loads ms':>14} {'scan ms':>9} {'ratio':>6} {'scan+messages ms':>17}")
    for name, (size, message_length) in SIZES.items():
        body = chat_body(size, message_length)
        loads = median_ms(partial(json.loads, body))
        scanned = median_ms(partial(scan, body))
        walked = median_ms(partial(scan_messages, body))
        print(f"{name:>6} {loads:14.3f} {scanned:9.3f} {scanned / loads:6.2f} {walked:17.3f}")


def chat_body(size: int, message_length: int) -> bytes:
    """Return a chat request of about `size` bytes."""
    content = (PARAGRAPH * (message_length // len(PARAGRAPH) + 1))[:message_length]
    message = {"role": "user", "content": content}
    count = max(1, size // len(json.dumps(message)))
    return json.dumps({"model": "example", "temperature": 0.2, "messages": [message] * count}).encode()


def scan_messages(body: bytes) -> int:
    """Scan and find the members of every message, as a pipeline does; return how many there are."""
    document = scan(body)
    messages = elements(document, document.members["messages"].value_span)
    return sum(len(members(document, message)) for message in messages)


def median_ms(work: Callable[[], object]) -> float:
    """Return the median milliseconds of `work`."""
    durations: list[float] = []
    while len(durations) < REPEATS_MIN or sum(durations) < SECONDS_MIN:
        start = time.perf_counter()
        work()
        durations.append(time.perf_counter() - start)
    return statistics.median(durations) * 1000


if __name__ == "__main__":
    main()
