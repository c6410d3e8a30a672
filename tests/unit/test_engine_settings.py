"""The plugin's settings: what is taken, and how what is not is named."""

from dataclasses import dataclass
from typing import Any

import pytest

from sternpost_core.errors import SettingsError
from sternpost_engine.buckets import Bucket
from sternpost_engine.settings import EngineSettings, parse_settings, pool_budget

SHARES = "an object of shares from 0 to 1 that add up to 1 at most, by 256, 512, 1024, 2048, 4096"


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [
        pytest.param({}, EngineSettings(), id="defaults"),
        pytest.param({"pool_fraction": 1}, EngineSettings(pool_fraction=1), id="largest-share"),
        pytest.param({"pool_fraction": 0.001}, EngineSettings(pool_fraction=0.001), id="small-share"),
        pytest.param({"pool_bytes": 0}, EngineSettings(pool_bytes=0), id="no-bytes"),
        pytest.param({"pool_shares": {}}, EngineSettings(pool_shares={}), id="no-shares"),
        pytest.param(
            {"pool_shares": {"256": 0, "4096": 1}},
            EngineSettings(pool_shares={"256": 0, "4096": 1}),
            id="one-bucket-keeps-all",
        ),
        pytest.param(
            {"pool_shares": dict.fromkeys(("256", "512", "1024", "2048", "4096"), 0.2)},
            EngineSettings(),
            id="equal-shares-written-out",
        ),
        pytest.param({"tail_tokens_min": 1}, EngineSettings(tail_tokens_min=1), id="shortest"),
        pytest.param({"calibration_texts": ""}, EngineSettings(), id="generic-texts"),
        pytest.param({"v2_model_runner": True}, EngineSettings(v2_model_runner=True), id="v2-runner"),
        pytest.param({"calibration_samples": 1}, EngineSettings(calibration_samples=1), id="one-sample"),
        pytest.param({"calibration_samples": 64}, EngineSettings(calibration_samples=64), id="most-samples"),
        pytest.param(
            {
                "pool_fraction": 0.5,
                "pool_bytes": 2**40,
                "tail_tokens_min": 128,
                "tail_tokens_max": 2048,
                "tail_share_min": 0.1,
                "calibration_texts": "texts",
                "calibration_samples": 4,
            },
            EngineSettings(
                pool_fraction=0.5,
                pool_bytes=2**40,
                tail_tokens_min=128,
                tail_tokens_max=2048,
                tail_share_min=0.1,
                calibration_texts="texts",
                calibration_samples=4,
            ),
            id="all",
        ),
    ],
)
def test_good_settings(mapping: dict[str, Any], expected: EngineSettings) -> None:
    """What is given is used; what is not takes its default."""
    assert expected == parse_settings(mapping)


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        pytest.param("pool_fraction", 0, "a number over 0, up to 1", id="no-share"),
        pytest.param("pool_fraction", 1.01, "a number over 0, up to 1", id="over-all"),
        pytest.param("pool_fraction", -0.2, "a number over 0, up to 1", id="negative-share"),
        pytest.param("pool_fraction", float("nan"), "a number over 0, up to 1", id="not-a-number"),
        pytest.param("pool_fraction", "0.2", "a number over 0, up to 1", id="share-as-text"),
        pytest.param("pool_fraction", True, "a number over 0, up to 1", id="share-as-boolean"),
        pytest.param("pool_fraction", None, "a number over 0, up to 1", id="share-missing"),
        pytest.param("tail_share_min", 2, "a number over 0, up to 1", id="tail-over-the-prompt"),
        pytest.param("pool_bytes", -1, "an integer from 0 on, in bytes", id="negative-bytes"),
        pytest.param("pool_bytes", 1.5, "an integer from 0 on, in bytes", id="part-of-a-byte"),
        pytest.param("pool_bytes", "1GiB", "an integer from 0 on, in bytes", id="unit"),
        pytest.param("pool_shares", 0.2, SHARES, id="one-share-for-all"),
        pytest.param("pool_shares", {"300": 0.2}, SHARES, id="no-such-bucket"),
        pytest.param("pool_shares", {"256": -0.1}, SHARES, id="negative-part"),
        pytest.param("pool_shares", {"256": "0.1"}, SHARES, id="part-as-text"),
        pytest.param("pool_shares", {"256": True}, SHARES, id="part-as-boolean"),
        pytest.param("pool_shares", {"256": 0.6, "512": 0.5}, SHARES, id="more-than-all"),
        pytest.param("pool_shares", {"256": float("nan")}, SHARES, id="part-is-not-a-number"),
        pytest.param("v2_model_runner", 1, "true or false", id="runner-as-number"),
        pytest.param("tail_tokens_min", 0, "an integer from 1 to 4096", id="no-tokens"),
        pytest.param("tail_tokens_min", False, "an integer from 1 to 4096", id="tokens-as-boolean"),
        pytest.param("tail_tokens_max", 0, "an integer from 1 to 4096", id="no-tokens-at-most"),
        pytest.param("tail_tokens_max", 4097, "an integer from 1 to 4096", id="longer-than-any-room"),
        pytest.param("tail_tokens_max", [4096], "an integer from 1 to 4096", id="list"),
        pytest.param("calibration_texts", None, "a folder's path, or empty", id="no-folder"),
        pytest.param("calibration_texts", ["texts"], "a folder's path, or empty", id="folders"),
        pytest.param("calibration_samples", 0, "an integer from 1 to 64", id="no-samples"),
        pytest.param("calibration_samples", 65, "an integer from 1 to 64", id="too-many-samples"),
        pytest.param("calibration_samples", 8.0, "an integer from 1 to 64", id="samples-as-fraction"),
        pytest.param("calibration_samples", True, "an integer from 1 to 64", id="samples-as-boolean"),
    ],
)
def test_wrong_value_is_named_with_what_is_allowed(key: str, value: object, allowed: str) -> None:
    """The message is what an operator of the engine reads in its log."""
    with pytest.raises(SettingsError) as caught:
        parse_settings({key: value})

    assert [f"kv_connector_extra_config.{key}: {value!r} is not allowed; allowed: {allowed}"] == [
        str(fault) for fault in caught.value.faults
    ]


def test_unknown_key_is_named_with_the_known_ones() -> None:
    """A typo must not silently become a default."""
    with pytest.raises(
        SettingsError, match=r"pool_fracton: an unknown key.* pool_fraction, pool_bytes, pool_shares, "
    ):
        parse_settings({"pool_fracton": 0.2})


def test_every_fault_is_named_at_once() -> None:
    """An operator mends them all before the next start."""
    with pytest.raises(SettingsError) as caught:
        parse_settings({"typo": 1, "pool_bytes": -1, "tail_share_min": 0, "tail_tokens_min": 128})

    assert ["typo", "pool_bytes", "tail_share_min"] == [
        fault.path.removeprefix("kv_connector_extra_config.") for fault in caught.value.faults
    ]


def test_shortest_tail_is_not_longer_than_the_longest() -> None:
    """No tail would ever be taken."""
    with pytest.raises(SettingsError, match=r"tail_tokens_min: 512 .* allowed: at most tail_tokens_max, 256"):
        parse_settings({"tail_tokens_min": 512, "tail_tokens_max": 256})


def test_long_value_is_cut() -> None:
    """A log line stays a line."""
    with pytest.raises(SettingsError) as caught:
        parse_settings({"pool_bytes": "x" * 10_000})

    assert len(caught.value.faults[0].value) <= 80


@dataclass(frozen=True, slots=True)
class Memory:
    """A worker's memory."""

    free_bytes: int
    host: bool = False


@pytest.mark.parametrize(
    ("settings", "workers", "expected"),
    [
        pytest.param(EngineSettings(pool_fraction=0.25), [Memory(1000)], 250, id="share-of-what-is-free"),
        pytest.param(EngineSettings(pool_fraction=0.25, pool_bytes=77), [Memory(1000)], 77, id="bytes-first"),
        pytest.param(EngineSettings(pool_fraction=0.5), [Memory(1000), Memory(600)], 300, id="least-device"),
        pytest.param(EngineSettings(pool_fraction=0.5), [Memory(1000, True)] * 2, 250, id="shared-host"),
        pytest.param(EngineSettings(), [], 0, id="nobody-answered"),
    ],
)
def test_budget_of_the_pool(settings: EngineSettings, workers: list[Memory], expected: int) -> None:
    """In bytes, on each worker."""
    assert expected == pool_budget(settings, workers)


def test_bucket_without_a_share_borrows() -> None:
    """Every length has a bucket, whatever shares are given."""
    assert (
        Bucket(256, 0.0),
        Bucket(512, 0.75),
        Bucket(1024, 0.0),
        Bucket(2048, 0.0),
        Bucket(4096, 0.25),
    ) == EngineSettings(pool_shares={"512": 0.75, "4096": 0.25}).buckets
