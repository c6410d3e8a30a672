"""Which tokens of a tail a middle points at: rare words, a few tokens behind them, and no more than asked."""

from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_engine.matching import (
    TOKENS_AFTER_MAX,
    TOKENS_AFTER_MIN,
    Run,
    TailWords,
    common_words,
    index_tail,
    match_runs,
)
from sternpost_engine.vocabulary import Vocabulary, Word

ROWS = (("apple", "A17"), ("banana", "B42"), ("cherry", "C99"))

TABLE = [word for fruit, code in ROWS for word in ("the", "code", "of", fruit, "is", code, "and")]
"""A tail with a row for each fruit; every token is a word."""


def index_of(words: Sequence[str], common: Collection[str] = ()) -> TailWords:
    """Index a tail whose tokens are these words, each with a space in front."""
    return index_tail(Vocabulary(lambda token: f" {words[token]}"), range(len(words)), common)


def runs_of(
    middle: Iterable[str],
    words: Sequence[str] = TABLE,
    *,
    first: int = 0,
    end: int | None = None,
    tokens_max: int = 100,
    common: Collection[str] = (),
) -> list[tuple[int, int]]:
    """Match a middle's words with the tail, and return each run's offset and count."""
    runs = match_runs(
        index_of(words, common),
        middle,
        first=first,
        end=len(words) if end is None else end,
        tokens_max=tokens_max,
    )
    return [(run.offset, run.count) for run in runs]


@pytest.mark.parametrize(
    ("words", "common", "expected"),
    [
        pytest.param(["apple"], (), {"apple": 1}, id="rare"),
        pytest.param(["apple", "apple"], (), {"apple": 2}, id="twice"),
        pytest.param(["apple", "apple", "apple"], (), {}, id="three-times"),
        pytest.param(["Apple", "apple", "APPLE"], (), {}, id="three-times-in-any-case"),
        pytest.param(["of", "is", "abc"], (), {"abc": 1}, id="short-words"),
        pytest.param(["apple", "pear"], {"apple"}, {"pear": 1}, id="common"),
        pytest.param(["日本", "語"], (), {"日本": 1}, id="two-characters-are-a-word"),
        pytest.param(["né", "ü"], (), {"né": 1}, id="accents-count-as-another-script"),
    ],
)
def test_rare_words_of_a_tail(words: list[str], common: Collection[str], expected: dict[str, int]) -> None:
    """Short words, common words and words that stand all over the tail point at nothing."""
    tail = index_of(words, common)

    assert expected == {text: len(places) for text, places in tail.places.items()}
    assert len(words) == tail.length


def test_places_are_where_the_words_stand() -> None:
    """By their tokens."""
    assert (Word("apple", 3, 3),) == index_of(TABLE).places["apple"]


@pytest.mark.parametrize(
    ("middle", "expected"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param(["zebra", "code", "the"], [], id="nothing-rare"),
        pytest.param(["apple"], [(3, 1 + TOKENS_AFTER_MIN)], id="a-row-and-what-follows"),
        pytest.param(["cherry", "apple"], [(3, 4), (17, 4)], id="two-rows-in-order"),
        pytest.param(["apple", "a17"], [(3, 6)], id="joined-where-they-meet"),
        pytest.param(["apple", "apple"], [(3, 4)], id="once-however-often"),
        pytest.param(["c99"], [(19, 2)], id="up-to-the-tails-end"),
    ],
)
def test_middle_points_at_rows(middle: list[str], expected: list[tuple[int, int]]) -> None:
    """What a word introduces follows it."""
    assert expected == runs_of(middle)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        pytest.param("hinge is on shelf K .", (0, 5), id="to-the-end-of-the-sentence"),
        pytest.param("hinge is on shelf K \n", (0, 5), id="to-the-end-of-the-row"),
        pytest.param("hinge . nut is on", (0, 1 + TOKENS_AFTER_MIN), id="beyond-an-end-that-is-too-near"),
        pytest.param("hinge " + "x " * 30 + ".", (0, 1 + TOKENS_AFTER_MAX), id="no-further-than-may-be"),
        pytest.param("hinge is on shelf K", (0, 1 + TOKENS_AFTER_MIN), id="no-end-in-sight"),
    ],
)
def test_the_row_is_computed_with_its_word(row: str, expected: tuple[int, int]) -> None:
    """What a row says may stand at its end."""
    words = [*row.split(" "), *("y" for _ in range(8))]

    assert [expected] == runs_of(["hinge"], words)


@pytest.mark.parametrize(("tokens_max", "expected"), [(3, []), (4, [(0, 4)]), (5, [(0, 4)]), (6, [(0, 6)])])
def test_a_row_that_is_too_long_for_the_cap_is_begun(
    tokens_max: int, expected: list[tuple[int, int]]
) -> None:
    """The next few tokens are better than nothing."""
    words = ["hinge", "is", "on", "the", "shelf", "K", "."]

    assert expected == runs_of(["hinge"], words, tokens_max=tokens_max)


def test_word_in_two_places_points_at_both() -> None:
    """Neither is more likely to be the one that is meant."""
    words = ["apple", "x", "x", "x", "x", "apple", "x"]

    assert [(0, 4), (5, 2)] == runs_of(["apple"], words)


def test_every_token_of_a_word_is_computed() -> None:
    """A word in pieces, and then the tokens after its last."""
    texts = [" x", " app", "le", " x", " x", " x", " x"]
    tail = index_tail(Vocabulary(lambda token: texts[token]), range(len(texts)), ())

    assert (Run(1, 5),) == match_runs(tail, ["apple"], first=0, end=7, tokens_max=9)


@pytest.mark.parametrize(
    ("first", "end", "expected"),
    [
        pytest.param(0, 21, [(3, 4), (17, 4)], id="whole-tail"),
        pytest.param(4, 21, [(4, 3), (17, 4)], id="head-has-the-word"),
        pytest.param(7, 21, [(17, 4)], id="head-has-the-run"),
        pytest.param(0, 18, [(3, 4), (17, 1)], id="last-has-what-follows"),
        pytest.param(0, 17, [(3, 4)], id="last-has-the-word"),
        pytest.param(7, 17, [], id="both-are-computed-anyway"),
        pytest.param(9, 9, [], id="nothing-is-copied"),
    ],
)
def test_head_and_last_tokens_are_computed_anyway(
    first: int, end: int, expected: list[tuple[int, int]]
) -> None:
    """Only what would be copied is worth a row."""
    assert expected == runs_of(["apple", "cherry"], first=first, end=end)


@pytest.mark.parametrize(
    ("tokens_max", "expected"),
    [
        pytest.param(0, [], id="nothing"),
        pytest.param(3, [], id="less-than-a-run"),
        pytest.param(4, [(10, 4)], id="the-longest-word"),
        pytest.param(7, [(10, 4)], id="not-half-a-run"),
        pytest.param(8, [(10, 4), (17, 4)], id="one-of-two-equally-long"),
        pytest.param(12, [(3, 4), (10, 4), (17, 4)], id="all"),
    ],
)
def test_longest_words_come_first_up_to_the_cap(tokens_max: int, expected: list[tuple[int, int]]) -> None:
    """They are the least likely to be there by chance; a run is computed whole or not at all."""
    assert expected == runs_of(["apple", "cherry", "bananas", "banana"], tokens_max=tokens_max)


@pytest.mark.parametrize(
    ("tokens_max", "expected"),
    [pytest.param(5, [(3, 4)], id="one-short"), pytest.param(6, [(3, 6)], id="just-enough")],
)
def test_token_in_two_runs_counts_once(tokens_max: int, expected: list[tuple[int, int]]) -> None:
    """It is computed once."""
    assert expected == runs_of(["apple", "a17"], tokens_max=tokens_max)


def test_shorter_run_fits_where_a_longer_one_does_not() -> None:
    """What is left of the cap is used."""
    words = ["strawberry", "x", "x", "x", "x", "x", "fig"]

    assert [(6, 1)] == runs_of(["strawberry", "fig"], words, tokens_max=3)


WORDS = st.sampled_from(["the", "fig", "apple", "banana", "cherry", "plum", "of", "日本"])


@given(
    words=st.lists(WORDS, max_size=30),
    middle=st.lists(WORDS, max_size=8),
    bounds=st.tuples(st.integers(0, 30), st.integers(0, 30)),
    tokens_max=st.integers(0, 30),
)
def test_runs_are_apart_in_order_and_inside_their_bounds(
    words: list[str], middle: list[str], bounds: tuple[int, int], tokens_max: int
) -> None:
    """Each is a row of its own over tokens that nobody else computes, and each has a reason."""
    first, end = min(bounds), min(max(bounds), len(words))
    runs = runs_of(middle, words, first=first, end=end, tokens_max=tokens_max)

    assert all(offset + count < after for (offset, count), (after, _) in pairwise(runs))
    assert all(count > 0 and first <= offset and offset + count <= end for offset, count in runs)
    assert sum(count for _, count in runs) <= tokens_max
    for offset, count in runs:
        for at in range(offset, offset + count):
            assert set(words[max(at - TOKENS_AFTER_MIN, 0) : at + 1]) & set(middle), (
                "a matched word stands near"
            )


@given(words=st.lists(WORDS, max_size=30), middle=st.permutations(["apple", "banana", "cherry", "plum"]))
def test_order_of_the_middles_words_does_not_matter(words: list[str], middle: list[str]) -> None:
    """The same request gets the same rows, whatever the order of a set in this process."""
    expected = runs_of(sorted(middle), words, tokens_max=9)

    assert expected == runs_of(middle, words, tokens_max=9)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        pytest.param([], set(), id="no-texts"),
        pytest.param([["the"], ["the"], ["a"], ["b"]], {"the"}, id="half-of-the-texts"),
        pytest.param([["the"], ["a"], ["b"], ["c"]], set(), id="a-quarter-is-not-more"),
        pytest.param([["the", "the", "the"], ["a"], ["b"], ["c"]], set(), id="once-per-text"),
        pytest.param([["the"], ["the"], *[["x"]] * 5], {"the", "x"}, id="more-than-a-quarter"),
    ],
)
def test_common_words_are_those_of_many_texts(texts: list[list[str]], expected: set[str]) -> None:
    """Words that most middles have point at nothing."""
    assert expected == common_words(texts)
