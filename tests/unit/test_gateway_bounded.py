"""Mappings that never grow beyond their bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sternpost_gateway.bounded import ENTRY_SIZE, Bounded, BoundedSize


def test_least_recently_used_goes_first() -> None:
    """A look at an entry counts as a use."""
    kept: BoundedSize[str, int] = BoundedSize(2 * (ENTRY_SIZE + 10))
    kept.put("a", 1, 10)
    kept.put("b", 2, 10)
    kept.get("a")
    kept.put("c", 3, 10)

    assert (1, None, 3) == (kept.get("a"), kept.get("b"), kept.get("c"))


def test_what_is_larger_than_all_is_not_kept() -> None:
    """A single entry beyond the bound empties the mapping and is not kept itself."""
    kept: BoundedSize[str, int] = BoundedSize(1000)
    kept.put("a", 1, 10)
    kept.put("b", 2, 1000)

    assert (0, 0) == (len(kept), kept.size)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 400))), st.integers(0, 1000))
def test_sizes_together_stay_within_the_bound(puts: list[tuple[int, int]], size_max: int) -> None:
    """Whatever is put, the size is that of what is kept, and within the bound."""
    kept: BoundedSize[int, int] = BoundedSize(size_max)
    for key, size in puts:
        kept.put(key, size, size)
        found = [value for number in range(6) if (value := kept.get(number)) is not None]

        assert sum(found) + ENTRY_SIZE * len(kept) == kept.size <= size_max


def test_entries_are_bounded() -> None:
    """The oldest of too many entries goes."""
    kept: Bounded[int, int] = Bounded(2)
    for number in range(3):
        kept.put(number, number)

    assert ((1, 1), (2, 2)) == kept.items()
