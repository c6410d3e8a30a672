"""
What an engine shows of its suffix store: sizes, states and ages, never a token id or a word.

Made in the scheduler's process, in plain values that travel to the process that answers HTTP.
"""

from __future__ import annotations

from typing import Any, Final

from sternpost_engine.index import Record, State, SuffixIndex

TAILS_MAX: Final = 1000
"""So many tails are listed at most, those first that were read last."""

SHOWN_STATES: Final = (State.BUILDING, State.LIVE, State.RETIRED)
"""The states that a held tail can be in."""


def count_states(index: SuffixIndex) -> dict[State, int]:
    """Count the held tails by state."""
    counts = dict.fromkeys(SHOWN_STATES, 0)
    for record in index.records():
        counts[record.state] += 1
    return counts


def describe_pool(index: SuffixIndex) -> dict[str, Any]:
    """Describe the store as a whole; all sizes in bytes on each worker."""
    used, shares = index.used_by_bucket, index.share_bytes
    epochs = {record.key.identity.epoch for record in index.records()}
    return {
        "pool_bytes": index.used_bytes,
        "pool_budget_bytes": index.budget_bytes,
        "buckets": [
            {"tokens": tokens, "pool_bytes": used[tokens], "share_bytes": shares[tokens]} for tokens in used
        ],
        "tails": {state.value: count for state, count in count_states(index).items()},
        "epochs": sorted(epochs),
    }


def describe_tails(index: SuffixIndex, now: float) -> dict[str, Any]:
    """
    List the held tails, those first that were read last; `left_off` says how many are not listed.

    `now` is the time of the index's clock; ages are in seconds.
    """
    records = sorted(index.records(), key=lambda record: (-record.last_read, record.entry))
    return {
        "tails": [_describe_tail(record, now) for record in records[:TAILS_MAX]],
        "left_off": max(len(records) - TAILS_MAX, 0),
    }


def _describe_tail(record: Record, now: float) -> dict[str, Any]:
    identity = record.key.identity
    return {
        "key": f"{record.key.lookup:016x}",
        "tokens": record.key.length,
        "state": record.state.value,
        "hits": record.hits,
        "readers": record.references,
        "read_seconds_ago": round(now - record.last_read, 3),
        "written_seconds_ago": round(now - record.last_write, 3),
        "epoch": identity.epoch,
        "bytes": record.room_bytes,
        "mode": identity.mode,
        "kind": identity.kind,
        "correction": identity.correction,
        "means": len(record.variants),
    }
