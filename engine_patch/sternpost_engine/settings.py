"""
The plugin's settings, from vLLM's `--kv-transfer-config`, key `kv_connector_extra_config`.

An unknown key or a wrong value stops the engine at its start, with every fault named: a typo must not
silently become a default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Protocol

from sternpost_core.errors import Fault, SettingsError
from sternpost_engine.buckets import BUCKET_TOKENS, EQUAL_BUCKETS, Bucket

SUBJECT = "kv_connector_extra_config"

CALIBRATION_SAMPLES_MAX = 64
"""More middles than this were no better in any trial."""

SHARES_ROUNDING = 1e-6
"""Five times 0.2 is a little more than 1 to a computer."""


def _equal_shares() -> dict[str, float]:
    return {str(bucket.tokens): bucket.share for bucket in EQUAL_BUCKETS}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """
    How large the suffix store may grow, and which tails it takes.

    `pool_fraction` is a share of the memory that is free, on the device that holds the KV cache, when the
    engine has loaded its weights and laid out its KV cache; `pool_bytes`, where it is not 0, is used instead.
    `pool_shares` divides the store among the length buckets: the part of each that the others cannot take,
    by its length in tokens; lengths that are not named have none and borrow. `calibration_texts` is a folder
    of the tails' owner's texts, empty for the generic set; `calibration_samples` middles are taken per
    length. `v2_model_runner` allows vLLM's V2 model runner, which has not been tried on a GPU yet.
    """

    pool_fraction: float = 0.2
    pool_bytes: int = 0
    pool_shares: Mapping[str, float] = field(default_factory=_equal_shares)
    tail_tokens_min: int = 256
    tail_tokens_max: int = 4096
    tail_share_min: float = 0.2
    calibration_texts: str = ""
    calibration_samples: int = 8
    v2_model_runner: bool = False

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """The length buckets with their shares."""
        return tuple(Bucket(tokens, self.pool_shares.get(str(tokens), 0.0)) for tokens in BUCKET_TOKENS)


_Check = tuple[Callable[[object], bool], str]


def parse_settings(mapping: Mapping[str, object]) -> EngineSettings:
    """
    Read the settings.

    Raises:
        SettingsError: with every unknown key and every wrong value.
    """
    checks = _checks()
    faults = [
        Fault(f"{SUBJECT}.{key}", "an unknown key", ", ".join(checks)) for key in mapping if key not in checks
    ]
    for key, (accepts, allowed) in checks.items():
        if key in mapping and not accepts(mapping[key]):
            faults.append(Fault(f"{SUBJECT}.{key}", repr(mapping[key])[:80], allowed))
    if faults:
        raise SettingsError("engine settings", faults)
    names = {field.name for field in fields(EngineSettings)}
    settings = EngineSettings(**{key: value for key, value in mapping.items() if key in names})  # type: ignore[arg-type]
    if settings.tail_tokens_min > settings.tail_tokens_max:
        allowed = f"at most tail_tokens_max, {settings.tail_tokens_max}"
        fault = Fault(f"{SUBJECT}.tail_tokens_min", str(settings.tail_tokens_min), allowed)
        raise SettingsError("engine settings", [fault])
    return settings


class FreeMemory(Protocol):
    """What a worker says of its memory, in bytes; on a host all workers share it."""

    @property
    def free_bytes(self) -> int:
        """The bytes that are free after weights and KV cache."""

    @property
    def host(self) -> bool:
        """Whether they are the host's."""


def pool_budget(settings: EngineSettings, workers: Sequence[FreeMemory]) -> int:
    """Return the store's budget on each worker, in bytes: that of the worker with the least room."""
    if settings.pool_bytes:
        return settings.pool_bytes
    shares = [worker.free_bytes // (len(workers) if worker.host else 1) for worker in workers]
    return int(settings.pool_fraction * min(shares, default=0))


def _checks() -> dict[str, _Check]:
    share: _Check = (lambda value: _is_number(value) and 0 < _number(value) <= 1, "a number over 0, up to 1")
    longest = BUCKET_TOKENS[-1]
    count: _Check = (
        lambda value: _is_integer(value) and 1 <= _number(value) <= longest,
        f"an integer from 1 to {longest}",
    )
    size: _Check = (
        lambda value: _is_integer(value) and _number(value) >= 0,
        "an integer from 0 on, in bytes",
    )
    return {
        "pool_fraction": share,
        "pool_bytes": size,
        "pool_shares": (
            _are_shares,
            f"an object of shares from 0 to 1 that add up to 1 at most, by {_listed(BUCKET_TOKENS)}",
        ),
        "tail_tokens_min": count,
        "tail_tokens_max": count,
        "tail_share_min": share,
        "calibration_texts": (lambda value: isinstance(value, str), "a folder's path, or empty"),
        "calibration_samples": (
            lambda value: _is_integer(value) and 1 <= _number(value) <= CALIBRATION_SAMPLES_MAX,
            f"an integer from 1 to {CALIBRATION_SAMPLES_MAX}",
        ),
        "v2_model_runner": (lambda value: isinstance(value, bool), "true or false"),
    }


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _are_shares(value: object) -> bool:
    known = {str(tokens) for tokens in BUCKET_TOKENS}
    if not isinstance(value, Mapping) or not set(value) <= known:
        return False
    sound = all(_is_number(share) and 0 <= _number(share) <= 1 for share in value.values())
    return sound and sum(value.values()) <= 1 + SHARES_ROUNDING


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return _is_integer(value) or isinstance(value, float)


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return value
