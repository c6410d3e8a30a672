"""Whether an answer has the form that its tail asks for, and where the figures of which tasks are kept."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from bench.quality.__main__ import saved_of
from bench.quality.asking import Reading
from bench.quality.form import Ending, ending_of, is_ended, is_named, named_mass
from bench.quality.tasks import ENDING, FURTHER, TASKS
from bench.quality.texts import TOKENIZER_FILE, token_texts
from sternpost_core.errors import OperatingError

EXACT = ((" house", " shelf"), (" of", "."), ("the", "."))


def reading(answers: Sequence[float], *positions: Sequence[float]) -> Reading:
    """Return a reading with these probabilities."""
    return Reading(
        answers=tuple(map(math.log, answers)),
        positions=tuple(tuple(map(math.log, values)) for values in positions),
        prompt_tokens=10,
        tail_tokens=5,
        suffix_tokens=0,
        computed_tokens=10,
        reason="off",
    )


@pytest.mark.parametrize(
    ("answers", "first", "expected"),
    [
        pytest.param((0.5, 0.1), (0.5, 0.2), True, id="an answer is the likeliest"),
        pytest.param((0.3, 0.1), (0.1, 0.2), True, id="likelier than what was likely to the exact arm"),
        pytest.param((0.3, 0.3), (0.1, 0.4), False, id="another word is the likeliest"),
    ],
)
def test_an_answer_is_named_where_no_other_token_is_likelier(
    answers: tuple[float, ...], first: tuple[float, ...], expected: bool
) -> None:
    """A likely answer that something else stands in front of is no valid call."""
    one = reading(answers, first)

    assert expected == is_named(one)
    assert sum(answers) == pytest.approx(named_mass(one))


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        pytest.param((" shelf", "."), Ending(1, frozenset({1})), id="behind one token"),
        pytest.param((" cell", "ar", "."), Ending(2, frozenset({1})), id="behind a word of two"),
        pytest.param((" cell", "ar"), Ending(0, frozenset()), id="cut within its word"),
        pytest.param(("<|im_end|>",), Ending(0, frozenset()), id="empty"),
    ],
)
def test_an_answer_is_to_end_behind_its_first_word(texts: tuple[str, ...], expected: Ending) -> None:
    """Tokens that begin with a letter continue a word."""
    assert expected == ending_of(texts, EXACT)


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        pytest.param(Ending(1, frozenset({1})), True, id="the full stop is the likeliest"),
        pytest.param(Ending(1, frozenset({0})), False, id="something else is"),
        pytest.param(Ending(0, frozenset()), False, id="nowhere"),
    ],
)
def test_an_arm_ends_where_the_end_is_its_likeliest_token(ending: Ending, expected: bool) -> None:
    """At the one position that counts."""
    assert expected == is_ended(reading((0.5,), (0.5, 0.2), (0.2, 0.5)), ending)


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        pytest.param(TASKS, "quality", id="the tasks that are always asked"),
        pytest.param(("shelf",), "quality", id="one of them"),
        pytest.param(FURTHER, "quality_further", id="all further ones"),
        pytest.param(("given",), "quality_further", id="a further one"),
    ],
)
def test_further_tasks_have_files_of_their_own(tasks: Sequence[str], expected: str, tmp_path: Path) -> None:
    """Saving them never overwrites the figures of the others."""
    saved = saved_of(tasks, tmp_path)

    assert expected == saved.name
    assert tmp_path / "bench" / "results" / f"{expected}.json" == saved.results
    assert tmp_path / "docs" / "results" / f"{expected}.md" == saved.document


def test_tasks_of_both_kinds_are_not_saved_in_one_file() -> None:
    """What was asked for is named, and what is allowed."""
    with pytest.raises(OperatingError, match="tasks shelf, tool are of both kinds; allowed: some of capital"):
        saved_of(["shelf", "tool"])


def test_tasks_that_allow_one_word_are_tasks() -> None:
    """A name that is none would hold nothing to its rule."""
    assert set(FURTHER) >= ENDING


def test_a_token_s_text_is_read_from_the_model_s_directory(tmp_path: Path) -> None:
    """Special tokens have one, too."""
    tokenizer = Tokenizer(WordLevel({"shelf": 0, "<|im_end|>": 1}, unk_token="shelf"))
    tokenizer.add_special_tokens(["<|im_end|>"])
    tokenizer.save(str(tmp_path / TOKENIZER_FILE))

    assert ["shelf", "<|im_end|>"] == [*map(token_texts(tmp_path), (0, 1))]


def test_a_model_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    """With what brings it."""
    with pytest.raises(OperatingError, match=r"tokenizer.json is not there; fetch the model"):
        token_texts(tmp_path)
