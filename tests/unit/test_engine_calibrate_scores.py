"""What observations come to: the figures of each arm, and the settings that they speak for."""

import math

import pytest
import yaml

from sternpost_core.policy import Calibration, Correction, Recompute, SuffixMode
from sternpost_core.policy_parse import parse
from sternpost_engine.calibrate.advice import advise, keeps_within, snippet
from sternpost_engine.calibrate.arms import FLOOR, GAP, Arm, Source, anchored, grid
from sternpost_engine.calibrate.scores import Figures, Observation, percentile, summarize

DEFAULT = Arm(Source.CALIBRATED, 32, 0, 64)


def make_figures(arm: Arm, *, floor_ratio: float, prefill: float, top1_delta: float = 0.0) -> Figures:
    """Return figures of which only some matter."""
    return Figures(
        arm=arm,
        middles=16,
        kl_first_mean=0.0,
        kl_first_p95=0.0,
        kl_mean=floor_ratio / 1000,
        kl_p95=0.0,
        floor_ratio=floor_ratio,
        top1=0.9,
        top1_delta=top1_delta,
        greedy=0.5,
        prefill_ratio=prefill,
    )


def make_policy(suffix_cache: object) -> dict[str, object]:
    """Return the least policy that holds this part."""
    return {
        "apiVersion": "sternpost.dev/v1alpha1",
        "kind": "CachePolicy",
        "metadata": {"name": "agents"},
        "spec": {
            "match": {},
            "poolRef": {"name": "pool"},
            "prompt": {"layout": "FixedTail", "tail": {"source": "LastSystemMessage"}},
            "suffixCache": suffix_cache,
        },
    }


def test_figures_are_means_over_middles_and_tokens() -> None:
    """Against the noise floor's own, and with the measured time where there is one."""
    floor = [Observation((0.01, 0.03), (True, True), 10, 10)]
    seen = [
        Observation((0.02, 0.04), (True, False), 3, 10),
        Observation((0.06, 0.00), (True, True), 2, 10),
    ]

    _, figures = summarize({FLOOR: floor, DEFAULT: seen}, {DEFAULT: 0.3})

    assert (DEFAULT, 2) == (figures.arm, figures.middles)
    assert [0.04, 0.03, 1.5, 0.75, -0.25, 0.75, 0.25, 0.3] == pytest.approx(
        [
            figures.kl_first_mean,
            figures.kl_mean,
            figures.floor_ratio,
            figures.top1,
            figures.top1_delta,
            figures.greedy,
            figures.prefill_ratio,
            figures.time_ratio,
        ]
    )


def test_floor_without_noise_makes_everything_infinite() -> None:
    """A model that computes in float32 alike in both dtypes has no floor to compare with."""
    floor = [Observation((0.0,), (True,), 10, 10)]

    figures = summarize({FLOOR: floor}, {})[0]

    assert math.inf == figures.floor_ratio


@pytest.mark.parametrize(
    ("agrees", "expected"),
    [
        pytest.param((True, True, True, True), 1.0, id="all"),
        pytest.param((False, True, True, True), 0.0, id="not-the-first"),
        pytest.param((True, True, False, True), 0.5, id="what-follows-a-difference-does-not-count"),
    ],
)
def test_greedy_share_ends_at_the_first_difference(agrees: tuple[bool, ...], expected: float) -> None:
    """From there on a greedy answer goes its own way."""
    assert expected == Observation((0.0,) * 4, agrees, 1, 2).greedy


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        pytest.param([4.0, 1.0, 2.0], 0.5, 2.0, id="median"),
        pytest.param([1.0, 2.0], 0.95, 1.95, id="between"),
        pytest.param([7.0], 0.95, 7.0, id="one"),
    ],
)
def test_percentile_is_interpolated(values: list[float], share: float, expected: float) -> None:
    """Between neighbours, in whatever order the values come."""
    assert expected == pytest.approx(percentile(values, share))


def test_grid_has_every_combination() -> None:
    """Each source with each count, without and with matched words."""
    arms = grid((1, 32), (0,), 64)

    assert 3 * 2 * 2 == len(arms) == len(set(arms))
    assert DEFAULT in arms
    assert Arm(Source.ALONE, 1, 0, 0) in arms


def test_grid_without_matching_has_no_second_half() -> None:
    """A cap of 0 is the same as none."""
    assert 3 == len(grid((1,), (0,), 0))


def test_anchored_arms_show_the_gap_first() -> None:
    """And then what reuse behind it adds."""
    assert (GAP, Arm(Source.CALIBRATED, 32, 0, 64, anchored=True)) == anchored((1, 32), 64)


@pytest.mark.parametrize(
    ("arm", "expected"),
    [
        pytest.param(FLOOR, "exact, bfloat16", id="floor"),
        pytest.param(DEFAULT, "calibrated, last 32, head 0, match 64", id="reused"),
        pytest.param(anchored((8,), 0)[1], "calibrated, anchored, last 8, head 0, match 0", id="anchored"),
    ],
)
def test_arm_says_what_it_is(arm: Arm, expected: str) -> None:
    """In words that a report can show."""
    assert expected == str(arm)


@pytest.mark.parametrize(
    ("floor_ratio", "top1_delta", "expected"),
    [
        pytest.param(2.0, -0.01, True, id="at-both-limits"),
        pytest.param(2.1, 0.0, False, id="too-far"),
        pytest.param(1.0, -0.02, False, id="too-often-another-token"),
    ],
)
def test_limits_are_those_of_a_dtype(floor_ratio: float, top1_delta: float, expected: bool) -> None:
    """Both the divergence and the likeliest token count."""
    figures = make_figures(DEFAULT, floor_ratio=floor_ratio, prefill=0.1, top1_delta=top1_delta)

    assert expected is keeps_within(figures)


@pytest.mark.parametrize(
    ("figures", "arm", "within"),
    [
        pytest.param(
            [
                make_figures(DEFAULT, floor_ratio=1.9, prefill=0.10),
                make_figures(Arm(Source.CALIBRATED, 32, 32, 64), floor_ratio=1.1, prefill=0.13),
            ],
            DEFAULT,
            True,
            id="cheapest-within",
        ),
        pytest.param(
            [
                make_figures(Arm(Source.SCAFFOLD, 32, 0, 64), floor_ratio=5.0, prefill=0.10),
                make_figures(Arm(Source.CALIBRATED, 32, 32, 64), floor_ratio=2.5, prefill=0.13),
            ],
            Arm(Source.CALIBRATED, 32, 32, 64),
            False,
            id="closest-where-none-is",
        ),
        pytest.param(
            [
                make_figures(Arm(Source.CALIBRATED, 1, 0, 64), floor_ratio=0.5, prefill=0.05),
                make_figures(Arm(Source.CALIBRATED, 32, 0, 0), floor_ratio=0.5, prefill=0.05),
                make_figures(Arm(Source.ALONE, 32, 0, 64), floor_ratio=0.5, prefill=0.05),
                make_figures(Arm(Source.CALIBRATED, 32, 0, 64, anchored=True), floor_ratio=0.5, prefill=0.05),
                make_figures(DEFAULT, floor_ratio=1.5, prefill=0.10),
            ],
            DEFAULT,
            True,
            id="never-below-the-defaults",
        ),
    ],
)
def test_advice_is_the_cheapest_within_the_limits(figures: list[Figures], arm: Arm, within: bool) -> None:
    """And the closest, with a warning, where nothing is."""
    advice = advise(figures, generic=True, config_map="middles")

    assert advice is not None
    assert (arm, within) == (advice.figures.arm, advice.within)


def test_there_is_no_advice_without_rows_that_may_be_advised() -> None:
    """A run with few counts says so instead of guessing."""
    low = make_figures(Arm(Source.CALIBRATED, 1, 0, 0), floor_ratio=0.5, prefill=0.05)

    assert advise([low], generic=True, config_map="middles") is None


@pytest.mark.parametrize("generic", [True, False], ids=["generic", "own"])
@pytest.mark.parametrize("source", [Source.SCAFFOLD, Source.CALIBRATED])
def test_advised_settings_are_a_part_of_a_policy(source: Source, generic: bool) -> None:
    """The policy's own parser reads the printed text, and finds what was advised."""
    arm = Arm(source, 48, 16, 32)
    advice = advise(
        [make_figures(arm, floor_ratio=1.0, prefill=0.1)], generic=generic, config_map="our-middles"
    )
    assert advice is not None

    printed = yaml.safe_load(snippet(advice.cache))
    policy = parse(make_policy(printed["spec"]["suffixCache"]))

    cache = policy.suffix_cache
    assert cache is not None
    assert advice.cache == cache
    assert (SuffixMode.ROTATE, Recompute(head=16, last=48, match=32)) == (cache.mode, cache.recompute)
    assert (Correction.CALIBRATED if source is Source.CALIBRATED else Correction.NONE) == cache.correction
    assert Calibration(generic=generic, config_map=None if generic else "our-middles") == cache.calibration
