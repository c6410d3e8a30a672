"""Words in token ids: whole or in pieces, with or without a space in front, in any script."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_engine.vocabulary import Vocabulary, Word

SPECIAL = ""
"""A special token has no text."""


def words_of(*texts: str) -> list[Word]:
    """Find the words of tokens with these texts."""
    return Vocabulary(lambda token: texts[token]).words(range(len(texts)))


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        pytest.param(("one", " two", "."), (2,), id="point"),
        pytest.param(("one", "\n", "two", " \n\n"), (1, 3), id="lines"),
        pytest.param(("9", ".", "99", "?"), (1, 3), id="points-within-numbers-too"),
        pytest.param(("one", ",", "two.", SPECIAL), (), id="neither-commas-nor-parts-of-tokens"),
        pytest.param(("\u6771", "\u3002"), (1,), id="ideographic-full-stop"),
    ],
)
def test_rows_and_sentences_end(texts: tuple[str, ...], expected: tuple[int, ...]) -> None:
    """By a token that is a mark, or that breaks the line."""
    assert expected == Vocabulary(lambda token: texts[token]).ends(range(len(texts)))


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        pytest.param((), [], id="nothing"),
        pytest.param(("refund",), [Word("refund", 0, 0)], id="whole"),
        pytest.param((" refund",), [Word("refund", 0, 0)], id="with-its-space"),
        pytest.param(("ref", "und"), [Word("refund", 0, 1)], id="in-pieces"),
        pytest.param((" re", "f", "und", "."), [Word("refund", 0, 2)], id="point-after-the-last-piece"),
        pytest.param((" re", "fund."), [Word("refund", 0, 1)], id="point-inside-the-last-piece"),
        pytest.param((" Refund",), [Word("refund", 0, 0)], id="capital"),
        pytest.param((" STRASSE", " Straße"), [Word("strasse", 0, 0), Word("strasse", 1, 1)], id="folded"),
        pytest.param((" get", "_", "order"), [Word("get_order", 0, 2)], id="underscores"),
        pytest.param((" A", "-", "17"), [Word("a", 0, 0), Word("17", 2, 2)], id="hyphen"),
        pytest.param(("one two",), [Word("one", 0, 0), Word("two", 0, 0)], id="two-in-one-token"),
        pytest.param(("one t", "wo"), [Word("one", 0, 0), Word("two", 0, 1)], id="second-goes-on"),
        pytest.param(
            ("o", "ne t", "wo x"), [Word("one", 0, 1), Word("two", 1, 2), Word("x", 2, 2)], id="chain"
        ),
        pytest.param((" ", "\n", "...", "--"), [], id="no-word"),
        pytest.param(("one", "\n", "two"), [Word("one", 0, 0), Word("two", 2, 2)], id="line"),
        pytest.param(("one", SPECIAL, "two"), [Word("one", 0, 0), Word("two", 2, 2)], id="special-between"),
        pytest.param((SPECIAL, "one", SPECIAL), [Word("one", 1, 1)], id="special-at-both-ends"),
        pytest.param(("bad", "\N{REPLACEMENT CHARACTER}"), [Word("bad", 0, 0)], id="part-of-a-character"),
        pytest.param(("日本", "語"), [Word("日本", 0, 0), Word("語", 1, 1)], id="one-word-per-token"),
        pytest.param(
            ("abc", "返品", "abc"), [Word("abc", 0, 0), Word("返品", 1, 1), Word("abc", 2, 2)], id="mixed"
        ),
        pytest.param(("、返品。", "。"), [Word("返品", 0, 0)], id="unspaced-without-its-signs"),
        pytest.param(("สินค้า",), [Word("สนคา", 0, 0)], id="thai"),
        pytest.param((" на", "каз"), [Word("наказ", 0, 1)], id="cyrillic-in-pieces"),
        pytest.param((" 주문", "번호"), [Word("주문번호", 0, 1)], id="korean-has-spaces"),
    ],
)
def test_words_and_the_tokens_that_hold_them(texts: tuple[str, ...], expected: list[Word]) -> None:
    """In lower case, in their order, from the first token with a part of the word to the last."""
    assert expected == words_of(*texts)


def test_each_tokens_text_is_looked_up_once() -> None:
    """Tokenizers are slow, and a vocabulary is finite."""
    asked: list[int] = []

    def text_of(token: int) -> str:
        asked.append(token)
        return f" word{token}"

    vocabulary = Vocabulary(text_of)
    first, second = vocabulary.words([3, 4, 3]), vocabulary.words([4, 5])

    assert [3, 4, 5] == asked
    assert ["word3", "word4", "word3"] == [word.text for word in first]
    assert ["word4", "word5"] == [word.text for word in second]


SPACED = st.text(st.sampled_from("abÄß9_ .\n-"), max_size=4)
UNSPACED = st.text(st.sampled_from("日本เ9 。"), max_size=4)
PIECES = st.lists(SPACED | UNSPACED | st.just(SPECIAL), max_size=12)


def letters(text: str) -> str:
    """Keep what words are made of."""
    return "".join(character for character in text if character.isalnum() or character == "_").casefold()


@given(texts=PIECES)
def test_word_is_in_the_tokens_that_it_names(texts: Sequence[str]) -> None:
    """And its first and last token hold a part of it."""
    for word in words_of(*texts):
        joined = "".join(texts[word.first : word.last + 1])

        assert word.text in letters(joined)
        assert letters(texts[word.first]) != "" != letters(texts[word.last])
        assert all(texts[position] != SPECIAL for position in range(word.first, word.last + 1))


@given(texts=PIECES)
def test_words_come_in_order(texts: Sequence[str]) -> None:
    """A word begins where the one before ends, or behind it."""
    words = words_of(*texts)

    assert all(before.last <= after.first for before, after in pairwise(words))
    assert all(word.first <= word.last for word in words)


@given(texts=st.lists(SPACED, max_size=12))
def test_no_letter_is_lost(texts: Sequence[str]) -> None:
    """Of the scripts with spaces, every letter, digit and underscore is in a word, in its place."""
    assert letters("".join(texts)) == "".join(word.text for word in words_of(*texts))


@given(text=st.text(st.sampled_from("abÄ9_ .\n"), max_size=20), cuts=st.lists(st.integers(0, 20)))
def test_words_do_not_depend_on_where_tokens_are_cut(text: str, cuts: list[int]) -> None:
    """A tokenizer writes one word in many ways."""
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[first:end] for first, end in pairwise(edges)]

    assert [word.text for word in words_of(text)] == [word.text for word in words_of(*pieces)]
