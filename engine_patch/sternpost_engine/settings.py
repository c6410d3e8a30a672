"""
The plugin's settings, from vLLM's `--kv-transfer-config`, key `kv_connector_extra_config`.

An unknown key or a wrong value stops the engine at its start, with every fault named: a typo must not
silently become a default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

from sternpost_core.errors import Fault, SettingsError
from sternpost_engine.index import BUCKET_TOKENS

SUBJECT = "kv_connector_extra_config"

CALIBRATION_SAMPLES_MAX = 64
"""More middles than this were no better in any trial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """
    How large the suffix store may grow, and which tails it takes.

    `pool_fraction` is a share of the memory that is free when the engine has loaded its weights and laid out
    its KV cache; `pool_bytes`, where it is not 0, is used instead. `calibration_texts` is a folder of the
    tails' owner's texts, empty for the generic set; `calibration_samples` middles are taken per length.
    """

    pool_fraction: float = 0.2
    pool_bytes: int = 0
    tail_tokens_min: int = 256
    tail_tokens_max: int = 4096
    tail_share_min: float = 0.2
    calibration_texts: str = ""
    calibration_samples: int = 8


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


def pool_budget(settings: EngineSettings, free_bytes: int) -> int:
    """The store's budget in bytes, where `free_bytes` are free after weights and KV cache."""
    return settings.pool_bytes or int(settings.pool_fraction * free_bytes)


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
        "tail_tokens_min": count,
        "tail_tokens_max": count,
        "tail_share_min": share,
        "calibration_texts": (lambda value: isinstance(value, str), "a folder's path, or empty"),
        "calibration_samples": (
            lambda value: _is_integer(value) and 1 <= _number(value) <= CALIBRATION_SAMPLES_MAX,
            f"an integer from 1 to {CALIBRATION_SAMPLES_MAX}",
        ),
    }


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return _is_integer(value) or isinstance(value, float)


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return value
