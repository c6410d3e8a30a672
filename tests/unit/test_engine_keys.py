"""The identity of a stored tail: what separates two tails, and what the lookup hash is made of."""

import struct
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_engine.keys import TailIdentity, hash_tail, pack_tokens, tail_key
from sternpost_fakes.tail_requests import IDENTITY

CHANGES = [
    pytest.param(field.name, 8 if field.name in ("anchor", "epoch") else "other", id=field.name)
    for field in fields(TailIdentity)
]

TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=20)


def little_endian(*tokens: int) -> bytes:
    """Pack tokens in one byte order, so that a golden hash holds on every machine."""
    return struct.pack(f"<{len(tokens)}i", *tokens)


@pytest.mark.parametrize(
    ("identity", "tokens", "expected"),
    [
        pytest.param(IDENTITY, little_endian(1, 2, 3), 0x59EE6CB64197D5D3, id="tail"),
        pytest.param(IDENTITY, b"", 0x291767A347925D17, id="no-tokens"),
        pytest.param(
            replace(IDENTITY, salt="Müller \ud800"), little_endian(1), 0x7AB7702BF2E38036, id="any-text"
        ),
    ],
)
def test_hash_is_the_same_in_every_release(identity: TailIdentity, tokens: bytes, expected: int) -> None:
    """What goes into the hash, and in which form, changes on purpose only."""
    assert expected == hash_tail(identity, tokens)


@pytest.mark.parametrize(("field", "value"), CHANGES)
def test_each_part_of_the_identity_separates_tails(field: str, value: object) -> None:
    """Equal tokens of another owner, or computed in another way, are another tail."""
    changed = replace(IDENTITY, **{field: value})  # type: ignore[arg-type]
    first, second = tail_key(IDENTITY, [1, 2]), tail_key(changed, [1, 2])

    assert first.lookup != second.lookup
    assert not first.same_tail(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(("a", "bc"), ("ab", "c"), id="moved-letter"),
        pytest.param(("", "x"), ("x", ""), id="moved-whole"),
        pytest.param(("a", "kind:1:b"), ("akind:1:b", ""), id="looks-like-a-tag"),
    ],
)
def test_text_that_moves_from_one_part_to_its_neighbour_changes_the_hash(
    first: tuple[str, str], second: tuple[str, str]
) -> None:
    """Each part is preceded by its length, so parts never run into each other."""
    hashes = {hash_tail(replace(IDENTITY, lora=lora, kind=kind), b"") for lora, kind in (first, second)}

    assert 2 == len(hashes)


@given(first=TOKENS, second=TOKENS)
def test_keys_are_equal_exactly_when_the_tokens_are(first: list[int], second: list[int]) -> None:
    """Length, order and every id count."""
    assert (first == second) == tail_key(IDENTITY, first).same_tail(tail_key(IDENTITY, second))


@given(tokens=TOKENS)
def test_same_tokens_hash_alike(tokens: list[int]) -> None:
    """A build and a read of the same tail meet, whatever sequence their tokens came in."""
    assert tail_key(IDENTITY, tokens) == tail_key(replace(IDENTITY), tuple(tokens))


def test_equal_hashes_do_not_make_equal_tails() -> None:
    """The whole token sequence is compared, never the hash alone."""
    first = tail_key(IDENTITY, [1], lambda identity, tokens: 7)
    second = tail_key(IDENTITY, [2], lambda identity, tokens: 7)

    assert first.lookup == second.lookup
    assert not first.same_tail(second)


@given(tokens=TOKENS)
def test_length_counts_tokens(tokens: list[int]) -> None:
    """The length of the packed ids is that of the tail."""
    assert len(tokens) == tail_key(IDENTITY, tokens).length


@given(tokens=TOKENS)
def test_lookup_hash_has_64_bits(tokens: list[int]) -> None:
    """It is small enough for every table that it may be kept in."""
    assert 0 <= hash_tail(IDENTITY, pack_tokens(tokens)) < 2**64


@pytest.mark.parametrize("token", [2**31, -(2**31) - 1], ids=["too-large", "too-small"])
def test_token_that_does_not_fit_is_refused(token: int) -> None:
    """An id is never cut to 32 bits: two ids would become one."""
    with pytest.raises(OverflowError):
        pack_tokens([token])
