"""The search for recipes: tasks, readings on a tiny model, and what records come to."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from bench.quality.tasks import Prompt, Split, Task, load_task
from bench.recipes.__main__ import DATA, OWNER_PROMPTS, PROMPTS, SEED, TASKS
from bench.recipes.recipes import RECIPES, ROUGH, Origin, Recipe
from bench.recipes.summary import (
    ALL,
    Case,
    is_done,
    make_cases,
    report,
    result_rows,
    summarize,
)
from bench.recipes.workbench import (
    EXACT,
    Models,
    Reading,
    Workbench,
    first_tokens,
    from_record,
    make_workbench,
    prompts_of,
    to_record,
)
from sternpost_core.clock import SystemClock
from sternpost_core.errors import OperatingError
from sternpost_engine.calibrate.arms import Arm, Source
from sternpost_engine.calibrate.budget import start_budget
from sternpost_fakes.tiny_folder import byte_tokenizer
from sternpost_fakes.tiny_models import tiny_model
from sternpost_fakes.word_tokenizer import WordTokenizer
from sternpost_gateway.bench.stats import mean


class Silence:
    """Watches nothing."""

    def begin(self, title: str, steps: int) -> None:
        """Do nothing."""

    def step(self) -> None:
        """Do nothing."""


def make_task() -> Task:
    """Return a task of a few words."""
    subjects = {"drum": "red", "harp": "blue", "flute": "green"}
    return Task(
        name="instruments",
        binds=True,
        # Longer than any recipe's last tokens, or these would compute all of it.
        tail="The drum is red. The harp is blue. The flute is green. Which colour has it?" * 6,
        cue=" It is",
        subjects={Split.TEST: subjects, Split.OWNER: subjects},
        templates={
            Split.TEST: ["I play the {subject} at {time}.", "My {subject}, found at {time}."],
            Split.OWNER: ["A {subject} at {time}", "The {subject} until {time}"],
        },
        words={"time": ["one", "two", "three", "four", "five"]},
    )


@pytest.fixture(scope="module")
def workbench() -> Workbench:
    """Return a workbench of a tiny model."""
    rough = tiny_model("llama-grouped", dtype=torch.bfloat16)
    models = Models(tiny_model("llama-grouped"), rough, WordTokenizer())
    owner, test = prompts_of(make_task(), 6, 4, seed=1)
    return make_workbench(models, make_task(), owner, test, start_budget(SystemClock(), 60.0), Silence())


def make_readings(right: Mapping[str, int], kl: float = 0.01) -> dict[str, Reading]:
    """Return readings of every recipe; `right` holds each one's chosen place, 0 where it is not named."""
    names = (EXACT, *(recipe.name for recipe in RECIPES))
    return {
        name: Reading(
            tuple(0.0 if place == right.get(name, 0) else -5.0 for place in range(2)),
            0.0 if name == EXACT else kl,
            100 if name in (EXACT, ROUGH.name) else 25,
        )
        for name in names
    }


@pytest.mark.parametrize("name", TASKS)
def test_tasks_give_enough_prompts(name: str) -> None:
    """Different ones, with no sentence of the owner's among them, and every answer among the right ones."""
    task = load_task(name, DATA)

    owner, test = prompts_of(task, OWNER_PROMPTS, PROMPTS, SEED)

    assert (OWNER_PROMPTS, PROMPTS) == (len(owner), len(test))
    assert not {prompt.middle for prompt in owner} & {prompt.middle for prompt in test}
    assert set(task.answers) == {prompt.answer for prompt in test}


@pytest.mark.parametrize("name", [name for name in TASKS if load_task(name, DATA).binds])
def test_answers_of_tasks_that_bind_are_in_the_tail(name: str) -> None:
    """In a row that the middle points at."""
    task = load_task(name, DATA)

    assert all(answer in task.tail for answer in task.answers)


def test_recipes_have_names_of_their_own() -> None:
    """Each is a key of every record."""
    assert len(RECIPES) == len({recipe.name for recipe in RECIPES})


def test_everything_computed_reads_as_exact(workbench: Workbench) -> None:
    """A recipe whose last tokens are the whole tail has the exact log-probabilities."""
    prompt = Prompt("one", "I play the harp at two.", "blue")
    everything = Recipe("everything", Origin.OWNER, Arm(Source.CALIBRATED, 1000))

    readings = workbench.read(prompt, [everything])

    assert readings[EXACT].answers == pytest.approx(readings["everything"].answers, abs=1e-4)
    assert readings[EXACT].computed == readings["everything"].computed
    assert 0.0 == readings[EXACT].kl
    assert readings["everything"].kl < 1e-5


def test_every_recipe_reads_every_prompt(workbench: Workbench) -> None:
    """With one log-probability per answer, and fewer tokens computed than the whole."""
    readings = workbench.read(Prompt("one", "I play the harp at two.", "blue"), RECIPES)

    assert {EXACT, *(recipe.name for recipe in RECIPES)} == set(readings)
    assert {3} == {len(reading.answers) for reading in readings.values()}
    assert all(reading.kl > 0 for name, reading in readings.items() if name != EXACT)


def test_origins_differ(workbench: Workbench) -> None:
    """The owner's texts make other means than the generic ones."""
    arm = Arm(Source.CALIBRATED, 1)
    recipes = [Recipe(str(origin), origin, arm) for origin in Origin]

    readings = workbench.read(Prompt("one", "I play the harp at two.", "blue"), recipes)

    assert len(Origin) == len({readings[recipe.name].answers for recipe in recipes})


def test_answers_must_differ_in_their_first_token() -> None:
    """A tokenizer of bytes begins every word with the space."""
    with pytest.raises(OperatingError, match="instruments: two of its answers begin with the same token"):
        first_tokens(byte_tokenizer(), make_task())


def test_records_are_read_as_they_were_written() -> None:
    """As JSON, with nothing lost."""
    readings = make_readings({})

    assert readings == from_record(json.loads(json.dumps(to_record(readings))))


def test_prior_is_taken_off_every_answer() -> None:
    """An answer that exact prefill prefers everywhere must gain on that to be chosen."""
    owner = [Reading((-0.1, -3.0), 0.0, 100)]
    test = [{EXACT: Reading((-0.5, -2.0), 0.0, 100)}]

    (case,) = make_cases([1], owner, test)

    assert case.is_right(EXACT)


def test_figures_compare_with_exact_prefill() -> None:
    """Accuracy, what was lost and won, divergence over the floor's, and the share computed."""
    lost = RECIPES[1].name
    cases = [
        Case(0, (0.0, 0.0), make_readings({lost: 1})),
        Case(0, (0.0, 0.0), make_readings({})),
        Case(1, (0.0, 0.0), make_readings({lost: 1})),
    ]

    found = {figure.name: figure for figure in summarize({"task": cases})}

    assert (2 / 3, 0, 0) == (
        found[EXACT].accuracy.value,
        found[EXACT].flips.lost,
        found[EXACT].flips.won,
    )
    assert (1, 1) == (found[lost].flips.lost, found[lost].flips.won)
    assert (1.0, 0.25) == pytest.approx((found[lost].kl_ratio, found[lost].computed))


def test_tasks_that_exact_prefill_cannot_do_are_not_counted_together() -> None:
    """They are shown by themselves."""
    good = [Case(0, (0.0, 0.0), make_readings({}))] * 5
    bad = [Case(1, (0.0, 0.0), make_readings({}))] * 5

    figures = summarize({"good": good, "bad": bad})

    assert (True, False) == (is_done(good), is_done(bad))
    assert {5} == {figure.accuracy.count for figure in figures if figure.task == ALL}


def test_without_a_task_that_is_done_nothing_is_counted_together() -> None:
    """There would be no cases."""
    bad = [Case(1, (0.0, 0.0), make_readings({}))]

    assert {"bad"} == {figure.task for figure in summarize({"bad": bad})}


def test_report_and_rows_have_every_recipe() -> None:
    """One line each, and figures in the common form."""
    figures = summarize({"task": [Case(0, (0.0, 0.0), make_readings({}))] * 3})

    lines = report(figures).split("\n")

    assert 2 + 1 + len(RECIPES) == len(lines)
    assert "1.000 (0/0)" in lines[-1]
    accuracies = [row.value for row in result_rows(figures) if row.metric == "accuracy"]
    assert 1.0 == mean(accuracies)
    assert 2 * (1 + len(RECIPES)) == len(accuracies)


def test_data_are_where_they_are_looked_for() -> None:
    """A task for each file."""
    assert sorted(TASKS) == sorted(path.stem for path in Path(DATA).glob("*.json"))
