"""The suffix store's length buckets: which one takes a tail, and who makes way for whom."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_engine.buckets import BUCKET_TOKENS, EQUAL_BUCKETS, Held, bucket_for, choose_victims

SHARES = {4: 8, 8: 8}


@pytest.mark.parametrize(
    ("tokens", "bucket"),
    [(1, 256), (256, 256), (257, 512), (1024, 1024), (2049, 4096), (4096, 4096), (4097, None)],
)
def test_smallest_bucket_that_holds_a_tail_takes_it(tokens: int, bucket: int | None) -> None:
    """The longest one's length is the longest tail's."""
    found = bucket_for(EQUAL_BUCKETS, tokens)

    assert bucket == (None if found is None else found.tokens)


def test_equal_shares_are_the_whole_store() -> None:
    """Nothing is left that only borrowers could have."""
    assert pytest.approx(1.0) == sum(bucket.share for bucket in EQUAL_BUCKETS)
    assert BUCKET_TOKENS == tuple(bucket.tokens for bucket in EQUAL_BUCKETS)


@pytest.mark.parametrize(
    ("idle", "bucket", "used", "expected"),
    [
        pytest.param([(1, 4)], 4, {4: 8, 8: 8}, [], id="room-enough"),
        pytest.param([(1, 4), (2, 4)], 8, {4: 12, 8: 8}, [1], id="borrower-gives-back-its-oldest"),
        pytest.param([(1, 8), (2, 4)], 8, {4: 12, 8: 8}, [2], id="bucket-within-its-share-keeps-older-ones"),
        pytest.param([(1, 8), (2, 4)], 4, {4: 12, 8: 8}, [2], id="newcomer-over-its-share-evicts-its-own"),
        pytest.param([(1, 8)], 4, {4: 12, 8: 8}, None, id="newcomer-over-its-share-takes-no-others"),
        pytest.param([(1, 8)], 8, {4: 12, 8: 8}, [1], id="borrowers-are-busy-so-own-oldest-goes"),
        pytest.param([], 8, {4: 12, 8: 8}, None, id="all-are-busy"),
        pytest.param([(1, 8), (2, 8)], 8, {4: 4, 8: 24}, [1, 2], id="as-many-as-it-takes"),
        pytest.param([(1, 8)], 8, {4: 4, 8: 24}, None, id="not-enough"),
    ],
)
def test_victims(
    idle: list[tuple[int, int]], bucket: int, used: dict[int, int], expected: list[int] | None
) -> None:
    """Over-full buckets give way first, least recently read first; rooms are their buckets' lengths."""
    held = [Held(entry, length, length) for entry, length in idle]

    assert expected == choose_victims(held, bucket, used=used, shares=SHARES, budget_bytes=16)


@given(
    lengths=st.lists(st.sampled_from((4, 8)), max_size=8),
    bucket=st.sampled_from((4, 8)),
    room=st.sampled_from((4, 8, 16)),
)
def test_no_bucket_falls_below_its_share_for_another(lengths: list[int], bucket: int, room: int) -> None:
    """Whatever is held, a bucket never ends with less than its share by more than one tail's room."""
    held = [Held(entry, length, length) for entry, length in enumerate(lengths)]
    before = {length: length * lengths.count(length) for length in SHARES}
    used = {**before, bucket: before[bucket] + room}

    victims = choose_victims(held, bucket, used=used, shares=SHARES, budget_bytes=16)

    if victims is not None:
        other = 12 - bucket
        left = before[other] - sum(
            length for entry, length in enumerate(lengths) if entry in victims and length == other
        )
        assert left >= min(before[other], SHARES[other] - other + 1)
        assert (
            left + used[bucket] - sum(lengths[entry] for entry in victims if lengths[entry] == bucket) <= 16
        )
