"""The tasks' data, and the prompts that are made from them."""

from collections import Counter
from itertools import chain

import pytest

from bench.quality.__main__ import OWNER_PROMPTS, PROMPTS, SEED
from bench.quality.tasks import FURTHER, TASKS, Split, Task, load_task, make_prompts
from sternpost_core.errors import OperatingError

COUNTS = {Split.TEST: PROMPTS, Split.OWNER: OWNER_PROMPTS}

TINY = Task(
    name="tiny",
    binds=True,
    tail="Rules.",
    cue="It is",
    subjects={Split.TEST: {"a cat": "tame", "a wolf": "wild"}, Split.OWNER: {"a dog": "tame"}},
    templates={Split.TEST: ["{subject} on a {day}"], Split.OWNER: ["see {subject}"]},
    words={"day": ["Monday", "Friday"]},
)


@pytest.mark.parametrize("name", [*TASKS, *FURTHER])
@pytest.mark.parametrize("split", list(Split))
def test_every_task_gives_the_prompts_that_are_wanted(name: str, split: Split) -> None:
    """They differ from each other, and their answers are among the candidates."""
    task = load_task(name)

    prompts = make_prompts(task, split, COUNTS[split], SEED)

    assert COUNTS[split] == len({prompt.middle for prompt in prompts})
    if split is Split.TEST:
        assert set(task.answers) == {prompt.answer for prompt in prompts}


@pytest.mark.parametrize("name", [*TASKS, *FURTHER])
def test_right_answers_are_spread_evenly(name: str) -> None:
    """No answer is right so often that always giving it would pay."""
    task = load_task(name)
    prompts = make_prompts(task, Split.TEST, PROMPTS, SEED)

    counts = Counter(prompt.answer for prompt in prompts)

    assert max(counts.values()) <= 2 * min(counts.values())


@pytest.mark.parametrize("name", [*TASKS, *FURTHER])
def test_the_owners_prompts_share_no_sentence_with_the_tests(name: str) -> None:
    """A calibration that has seen the test's prompts would prove nothing."""
    task = load_task(name)

    assert set() == set(task.templates[Split.TEST]) & set(task.templates[Split.OWNER])
    assert set() == {prompt.middle for prompt in make_prompts(task, Split.TEST, PROMPTS, SEED)} & {
        prompt.middle for prompt in make_prompts(task, Split.OWNER, OWNER_PROMPTS, SEED)
    }


@pytest.mark.parametrize("name", [*TASKS, *FURTHER])
def test_what_binds_has_its_answers_in_the_tail(name: str) -> None:
    """A binding task's subjects and answers stand in one line of the tail; the others' subjects do not."""
    task = load_task(name)
    lines = task.tail.split("\n")

    together = [
        any(subject in line and answer in line for line in lines)
        for subject, answer in task.subjects[Split.TEST].items()
    ]

    assert ([task.binds] * len(together)) == together


@pytest.mark.parametrize("name", [*TASKS, *FURTHER])
def test_templates_have_one_subject_and_known_gaps(name: str) -> None:
    """A template without its subject would make a prompt that has no answer."""
    task = load_task(name)

    for template in chain.from_iterable(task.templates.values()):
        assert 1 == template.count("{subject}")


def test_a_seed_decides_the_prompts() -> None:
    """The same seed gives the same prompts, another seed others."""
    task = load_task("shelf")

    assert make_prompts(task, Split.TEST, 20, 1) == make_prompts(task, Split.TEST, 20, 1)
    assert make_prompts(task, Split.TEST, 20, 1) != make_prompts(task, Split.TEST, 20, 2)


def test_subjects_take_turns_and_a_prompt_begins_with_a_capital() -> None:
    """With two subjects and two days there are four prompts."""
    prompts = make_prompts(TINY, Split.TEST, 4, 0)

    assert {"A cat on a Monday", "A cat on a Friday", "A wolf on a Monday", "A wolf on a Friday"} == {
        prompt.middle for prompt in prompts
    }
    assert {"tame": 2, "wild": 2} == Counter(prompt.answer for prompt in prompts)


def test_data_that_give_too_few_prompts_are_an_error() -> None:
    """Better than a loop without end, or prompts that repeat."""
    with pytest.raises(OperatingError, match="its data give 4 prompts for test, not 5"):
        make_prompts(TINY, Split.TEST, 5, 0)
