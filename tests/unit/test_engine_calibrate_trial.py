"""A whole calibration on a tiny model, and its parts."""

import csv
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch
import yaml
from rich.console import Console

from sternpost_core.clock import SystemClock
from sternpost_core.errors import OperatingError, SettingsError
from sternpost_core.policy import BUCKETS
from sternpost_engine.calibrate.arms import FLOOR, GAP, Arm, Source, anchored, grid
from sternpost_engine.calibrate.budget import start_budget
from sternpost_engine.calibrate.files import PLOT_MISSING, write_files
from sternpost_engine.calibrate.frame import Frame
from sternpost_engine.calibrate.laboratory import Laboratory
from sternpost_engine.calibrate.report import COLUMNS, cells, print_report, remarks
from sternpost_engine.calibrate.scores import Observation
from sternpost_engine.calibrate.session import calibrate
from sternpost_engine.calibrate.settings import Settings
from sternpost_engine.calibrate.sources import needed_lengths, samples_that_fit
from sternpost_engine.calibrate.trial import Outcome, observe, run_trial, stop_tokens
from sternpost_engine.reference import build_tail
from sternpost_engine.tensors import StoredTail
from sternpost_fakes.clock import FakeClock
from sternpost_fakes.middles import make_marker
from sternpost_fakes.tiny_folder import write_tiny_folder
from sternpost_fakes.tiny_models import VOCABULARY, tiny_model

SCAFFOLD = (1, 2, 3, 4)
TAIL = tuple((7 * number + 3) % VOCABULARY for number in range(48))
MIDDLE = tuple((5 * number + 1) % VOCABULARY for number in range(20))
ANSWER_TOKENS = 4


class QuietProgress:
    """Notes the parts' titles and counts their steps."""

    def __init__(self) -> None:
        self.parts: dict[str, list[int]] = {}

    def begin(self, title: str, steps: int) -> None:
        """Note a part and its steps."""
        self.parts[title] = [steps, 0]

    def step(self) -> None:
        """Count a step of the last part."""
        self.parts[next(reversed(self.parts))][1] += 1


def make_laboratory(stop_tokens: frozenset[int] = frozenset()) -> Laboratory:
    """Return a laboratory whose tails all come from the middle's own context, so that reuse is exact."""
    exact = tiny_model("llama-grouped")
    frame = Frame(SCAFFOLD, 2, TAIL)
    marker = make_marker()
    marker.learn(0, TAIL)
    true_tail = build_tail(exact, frame.front(MIDDLE), TAIL)
    return Laboratory(
        exact=exact,
        rough=tiny_model("llama-grouped", dtype=torch.bfloat16),
        frame=frame,
        tails={
            Source.ALONE: build_tail(exact, (), TAIL),
            Source.SCAFFOLD: true_tail,
            Source.CALIBRATED: StoredTail(TAIL, true_tail.scaffold, means={}),
        },
        marker=marker,
        anchor=64,
        answer_tokens=ANSWER_TOKENS,
        stop_tokens=stop_tokens,
    )


def observed(arm: Arm) -> Observation:
    """Return what an arm makes of the middle."""
    return make_laboratory().observe(MIDDLE, (arm,))[arm]


@pytest.mark.parametrize(
    "arm",
    [
        pytest.param(Arm(Source.SCAFFOLD, 1), id="last-token"),
        pytest.param(Arm(Source.SCAFFOLD, 8, 4, 16), id="head-match-last"),
        pytest.param(Arm(Source.ALONE, 48), id="everything-computed"),
    ],
)
def test_reuse_of_the_true_kv_costs_nothing(arm: Arm) -> None:
    """Every distribution of the answer is the exact one."""
    seen = observed(arm)

    assert ANSWER_TOKENS == len(seen.kl) == len(seen.agrees)
    assert max(seen.kl) < 1e-5
    assert all(seen.agrees)


@pytest.mark.parametrize(
    "arm",
    [
        pytest.param(FLOOR, id="bfloat16"),
        pytest.param(GAP, id="gap"),
        pytest.param(Arm(Source.ALONE, 1), id="alone"),
        pytest.param(Arm(Source.SCAFFOLD, 1, anchored=True), id="anchored"),
    ],
)
def test_everything_else_costs_something(arm: Arm) -> None:
    """Otherwise the test above would show nothing."""
    assert max(observed(arm).kl) > 1e-5


@pytest.mark.parametrize(
    ("arm", "expected"),
    [
        pytest.param(FLOOR, 22 + 48, id="floor"),
        pytest.param(GAP, 22 + 48, id="gap"),
        pytest.param(Arm(Source.SCAFFOLD, 1), 22 + 1, id="last"),
        pytest.param(Arm(Source.SCAFFOLD, 8, 4), 22 + 12, id="head-and-last"),
        pytest.param(Arm(Source.SCAFFOLD, 48), 22 + 48, id="whole-tail"),
    ],
)
def test_computed_tokens_are_counted_behind_the_prefix(arm: Arm, expected: int) -> None:
    """20 of the middle and the 2 that close it, and what is computed of the tail."""
    seen = observed(arm)

    assert (expected, 22 + 48) == (seen.computed, seen.prompt)


def test_matched_words_are_computed() -> None:
    """The tail's tokens that the middle has, too, up to the cap."""
    without, with_match = observed(Arm(Source.ALONE, 1)), observed(Arm(Source.ALONE, 1, 0, 8))

    assert without.computed < with_match.computed <= without.computed + 8


def test_answer_ends_at_a_stop_token() -> None:
    """Nothing is compared behind it."""
    laboratory = make_laboratory(stop_tokens=frozenset(range(VOCABULARY)))

    assert 1 == len(laboratory.observe(MIDDLE, (FLOOR,))[FLOOR].kl)


@pytest.mark.parametrize(
    ("longest", "expected"),
    [
        pytest.param(10, (48,), id="short"),
        pytest.param(48, (48,), id="at-the-first"),
        pytest.param(49, (48, 384), id="between"),
        pytest.param(9000, (48, 384, 3000), id="longer-than-all"),
    ],
)
def test_only_means_that_are_read_are_computed(longest: int, expected: tuple[int, ...]) -> None:
    """The one behind the longest middle is the last that anything is interpolated with."""
    assert expected == needed_lengths(longest)


@pytest.mark.parametrize(
    ("seconds_per_token", "seconds", "expected"),
    [
        pytest.param(0.001, 900.0, 8, id="all"),
        pytest.param(0.01, 60.0, 3, id="some"),
        pytest.param(1.0, 1.0, 1, id="one-at-least"),
        pytest.param(0.0, 1.0, 8, id="clock-too-coarse"),
    ],
)
def test_samples_fit_into_the_time(seconds_per_token: float, seconds: float, expected: int) -> None:
    """One of 48 and one of 384 tokens with 100 others take 632 tokens; half of the time is theirs."""
    assert expected == samples_that_fit(8, (48, 384), 100, seconds_per_token, seconds)


class SlowLaboratory:
    """Takes ten seconds for every middle."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock

    def observe(self, middle: Sequence[int], arms: Sequence[Arm]) -> dict[Arm, Observation]:
        """Return nothing worth looking at."""
        self._clock.advance(10.0)
        return {arm: Observation((0.0,), (True,), 1, 1) for arm in arms}


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        pytest.param(1000.0, 5, id="all"),
        pytest.param(40.0, 3, id="what-fits"),
        pytest.param(1.0, 1, id="one-at-least"),
    ],
)
def test_no_middle_begins_that_does_not_fit(seconds: float, expected: int) -> None:
    """Judged by the longest one so far, with a tenth of the time left for what follows."""
    clock, progress = FakeClock(), QuietProgress()

    seen = observe(SlowLaboratory(clock), [MIDDLE] * 5, (FLOOR,), start_budget(clock, seconds), progress)

    assert expected == len(seen[FLOOR]) == progress.parts["testing held-out middles"][1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a tiny model."""
    return write_tiny_folder(tmp_path_factory.mktemp("model"))


def make_settings(folder: Path, files: Path, **changes: object) -> Settings:
    """Return settings for a small calibration; tail and middles are written to `files`."""
    tail, middles = files / "tail.md", files / "middles.txt"
    tail.write_text("Answer by one of these names: amber, birch, cedar. Use no other word.", "utf-8")
    words = ("amber", "two", "three birch", "four and five", "six", "seven", "eight", "nine")
    middles.write_text("\n".join(words), "utf-8")
    settings = Settings(
        model=folder,
        tail=tail,
        middles=middles,
        out=files / "out",
        last=(1, 32),
        head=(0,),
        test_middles=3,
        calibration_samples=2,
        answer_tokens=3,
    )
    return replace(settings, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def outcome(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Return what a small calibration found out."""
    settings = make_settings(folder, tmp_path_factory.mktemp("files"))
    return run_trial(settings, SystemClock(), QuietProgress())


def test_trial_has_every_arm(outcome: Outcome) -> None:
    """The floor first, then the grid, then the anchored ones, each over all middles."""
    arms = (FLOOR, *grid((1, 32), (0,), 64), *anchored((1, 32), 64))

    assert arms == tuple(figures.arm for figures in outcome.figures)
    assert {3} == {figures.middles for figures in outcome.figures}
    assert {48: 2} == outcome.samples
    assert outcome.advice is not None


def test_times_are_measured_for_every_reused_arm(outcome: Outcome) -> None:
    """A ratio of seconds, which is above zero whatever the machine."""
    ratios = {figures.arm: figures.time_ratio for figures in outcome.figures}

    assert {FLOOR: None, GAP: None} == {arm: ratio for arm, ratio in ratios.items() if ratio is None}
    assert all(ratio > 0 for ratio in ratios.values() if ratio is not None)


def test_floor_is_once_the_floor(outcome: Outcome) -> None:
    """Its own figures are what the others are divided by."""
    assert (1.0, 0.0) == (outcome.figures[0].floor_ratio, outcome.figures[0].top1_delta)


def test_calibration_comes_closer_than_a_tail_alone(outcome: Outcome) -> None:
    """Even on a random model: the middle's own template tokens are in the mean."""
    found = {figures.arm: figures.kl_mean for figures in outcome.figures}

    assert found[Arm(Source.CALIBRATED, 1, 0, 0)] < found[Arm(Source.ALONE, 1, 0, 0)]


def test_report_has_a_row_per_arm(outcome: Outcome) -> None:
    """Every figure in its column, and the settings at the end, which can be read as YAML."""
    out = StringIO()
    print_report(outcome, Console(file=out, width=200))

    assert {len(COLUMNS)} == {len(cells(figures)) for figures in outcome.figures}
    assert len(outcome.figures) == sum("/" in line and "│" in line for line in out.getvalue().split("\n"))
    printed = yaml.safe_load(out.getvalue()[out.getvalue().index("spec:") :])
    assert "suffixCache" in printed["spec"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"wanted": 16}, "Time for 3 of 16 middles", id="cut-short"),
        pytest.param({}, "Only 3 middles", id="few"),
        pytest.param({"generic": True}, "the generic set, a start", id="generic"),
        pytest.param({}, f"under {BUCKETS[0]} tokens are not reused", id="short-tail"),
        pytest.param({}, "Anchored rows are a warning", id="anchored"),
        pytest.param({"closing": 33}, "takes 33 tokens: --last should cover it", id="long-closing"),
        pytest.param({"advice": None}, "No settings to advise", id="no-advice"),
    ],
)
def test_report_says_what_weakens_it(outcome: Outcome, changes: dict[str, object], message: str) -> None:
    """In words, below the table."""
    lines = [line.plain for line in remarks(replace(outcome, **changes))]  # type: ignore[arg-type]

    assert any(message in line for line in lines)


def test_files_hold_the_figures(outcome: Outcome, folder: Path, tmp_path: Path) -> None:
    """CSV, JSON, the settings, and a picture, in a folder that is made."""
    settings = make_settings(folder, tmp_path, out=tmp_path / "new" / "out")
    told: list[str] = []

    write_files(outcome, settings, told.append)

    names = ["calibration.csv", "calibration.json", "policy.yaml", "calibration.png"]
    assert [str(settings.out / name) for name in names] == told
    rows = list(csv.DictReader((settings.out / names[0]).read_text("utf-8").splitlines()))
    document = json.loads((settings.out / names[1]).read_text("utf-8"))
    assert [str(figures.arm.source) for figures in outcome.figures] == [row["source"] for row in rows]
    assert [float(row["kl_mean"]) for row in rows] == [row["kl_mean"] for row in document["rows"]]
    assert {"wanted": 3, "tested": 3, "generic": False} == document["middles"]
    assert b"\x89PNG" == (settings.out / names[3]).read_bytes()[:4]


def test_figure_that_is_no_number_is_left_empty(outcome: Outcome, folder: Path, tmp_path: Path) -> None:
    """A model without a noise floor makes every ratio infinite, which JSON cannot hold."""
    infinite = tuple(replace(figures, floor_ratio=math.inf) for figures in outcome.figures)
    settings = make_settings(folder, tmp_path)

    write_files(replace(outcome, figures=infinite), settings, lambda line: None)

    text = (settings.out / "calibration.json").read_text("utf-8")
    rows = json.loads(text, parse_constant=pytest.fail)["rows"]
    assert {None} == {row["floor_ratio"] for row in rows}


def test_picture_is_left_out_without_matplotlib(
    outcome: Outcome, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything else is written, and a line says what to install."""
    monkeypatch.setitem(sys.modules, "sternpost_engine.calibrate.plot", None)
    told: list[str] = []

    write_files(outcome, make_settings(folder, tmp_path), told.append)

    assert PLOT_MISSING == told[-1]
    assert (tmp_path / "out" / "calibration.csv").is_file()


def test_folder_that_cannot_be_written_is_named(outcome: Outcome, folder: Path, tmp_path: Path) -> None:
    """A file is in its place."""
    settings = make_settings(folder, tmp_path)
    settings.out.write_text("in the way", "utf-8")

    with pytest.raises(OperatingError, match=r"the folder of --out, .*out, cannot be written to"):
        write_files(outcome, settings, lambda line: None)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        pytest.param(
            {"anchor": 5}, SettingsError, r"--anchor: 5 is not allowed; allowed: \d+ .*or 0", id="anchor"
        ),
        pytest.param({"answer_tokens": 1000}, SettingsError, r"--tail: \d+ tokens behind", id="too-long"),
        pytest.param({"model": Path("nowhere")}, OperatingError, "cannot load the tokenizer", id="no-model"),
        pytest.param({"device": "cuda"}, SettingsError, "--device: cuda", id="no-gpu"),
    ],
)
def test_wrong_settings_are_refused(
    folder: Path, tmp_path: Path, changes: dict[str, object], error: type[Exception], message: str
) -> None:
    """With the flag, before the tail is encoded."""
    if changes.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    settings = make_settings(folder, tmp_path, **changes)

    with pytest.raises(error, match=message):
        calibrate(settings, SystemClock(), StringIO(), StringIO())


def test_whole_command_prints_and_writes(folder: Path, tmp_path: Path) -> None:
    """The report on the one stream, bars and paths on the other."""
    out, errors = StringIO(), StringIO()

    calibrate(make_settings(folder, tmp_path), SystemClock(), out, errors)

    assert "suffixCache:" in out.getvalue()
    assert "calibration.csv" in errors.getvalue()
    assert "testing held-out middles" in errors.getvalue()


def test_stop_tokens_are_the_models() -> None:
    """One, several, or none."""
    model = tiny_model("llama")
    found = []
    for ids in (None, 5, [5, 6]):
        model.network.generation_config.eos_token_id = ids
        found.append(stop_tokens(model))
    model.network.generation_config.eos_token_id = None

    assert [frozenset(), frozenset({5}), frozenset({5, 6})] == found
