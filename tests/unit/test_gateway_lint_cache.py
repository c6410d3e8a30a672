"""The simulated cache: which blocks it holds, and which go first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_gateway.lint.cache import PrefixCache, block_hashes
from sternpost_gateway.lint.encoders import pack


def hashes(text: str, seed: str = "") -> list[int]:
    """Return the hashes of a prompt of one token for each letter, in blocks of two."""
    return block_hashes(pack([ord(letter) for letter in text]), seed, 2)


@pytest.mark.parametrize(
    ("left", "right", "common"),
    [
        pytest.param("abcdef", "abcdef", 3, id="equal"),
        pytest.param("abcdef", "abcdxf", 2, id="the-end-differs"),
        pytest.param("abcdef", "xbcdef", 0, id="the-beginning-differs"),
        pytest.param("abcdefg", "abcdefx", 3, id="no-whole-block-differs"),
        pytest.param("a", "a", 0, id="no-whole-block"),
    ],
)
def test_a_block_is_known_by_all_before_it(left: str, right: str, common: int) -> None:
    """Equal tokens behind a difference are other blocks."""
    assert common == sum(a == b for a, b in zip(hashes(left), hashes(right), strict=True))


def test_a_salt_keeps_blocks_apart() -> None:
    """Two tenants with one prompt share nothing."""
    assert not set(hashes("abcd", "one")) & set(hashes("abcd", "other"))


def test_what_was_used_longest_ago_goes_first() -> None:
    """With room for three blocks, the third prompt takes the place of the first."""
    cache = PrefixCache(3)
    for text in ("aabb", "cc", "dd"):
        cache.take(hashes(text), 2)

    assert 1 == cache.take(hashes("aabb"), 2), "the end of a prompt goes before its beginning"
    assert 3 == len(cache)


def test_only_so_many_blocks_may_be_reused() -> None:
    """At least one token is always computed."""
    cache = PrefixCache(10)
    cache.take(hashes("aabb"), 2)

    assert 1 == cache.take(hashes("aabb"), 1)


def test_a_prompt_larger_than_the_cache_leaves_its_beginning() -> None:
    """As much as there is room for."""
    cache = PrefixCache(2)
    cache.take(hashes("aabbcc"), 3)

    assert (2, 2) == (len(cache), cache.take(hashes("aabbcc"), 3))


def test_what_is_not_held_takes_room_all_the_same() -> None:
    """A block that is not full is computed somewhere, and what was there is gone."""
    cache = PrefixCache(3)
    cache.take(hashes("aabbcc"), 3)
    cache.take([], 0, partial=2)

    assert 1 == cache.take(hashes("aabbcc"), 3)


class PlainCache:
    """The same by the book: a list of blocks, most recently used last."""

    def __init__(self, blocks_max: int) -> None:
        self._blocks_max = blocks_max
        self._blocks: list[int] = []

    def take(self, wanted: list[int]) -> int:
        """Count the blocks that are there from the start, then use all from the last to the first."""
        held = 0
        while held < len(wanted) and wanted[held] in self._blocks:
            held += 1
        self._blocks = [block for block in self._blocks if block not in wanted] + wanted[::-1]
        self._blocks = self._blocks[-self._blocks_max :]
        return held


@given(st.lists(st.text("ab", max_size=12), max_size=30), st.integers(1, 8))
def test_the_cache_does_what_the_book_says(prompts: list[str], blocks_max: int) -> None:
    """Prompts of two letters meet all the time."""
    cache, plain = PrefixCache(blocks_max), PlainCache(blocks_max)

    for prompt in prompts:
        wanted = hashes(prompt)
        assert plain.take(wanted) == cache.take(wanted, len(wanted))
        assert len(cache) <= blocks_max
