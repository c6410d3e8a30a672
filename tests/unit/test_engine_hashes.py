"""Block hashes: which blocks two requests share, by what they read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_engine.hashes import BlockHashes
from sternpost_engine.tracks import Space

BLOCK = 4


@dataclass
class HashedRequest:
    """A request whose blocks of four tokens are hashed in a chain, as vLLM hashes them."""

    request_id: str
    tokens: list[int]
    salt: bytes = b""
    block_hashes: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.update_block_hashes()

    def update_block_hashes(self) -> None:
        """Hash the whole blocks that have no hash yet."""
        while len(self.tokens) >= BLOCK * (len(self.block_hashes) + 1):
            first = BLOCK * len(self.block_hashes)
            parent = self.block_hashes[-1] if self.block_hashes else self.salt
            self.block_hashes.append(sha256(parent + bytes(self.tokens[first : first + BLOCK])).digest())

    def answer(self, tokens: Sequence[int]) -> None:
        """Append generated tokens."""
        self.tokens += tokens
        self.update_block_hashes()


def shared(first: HashedRequest, second: HashedRequest) -> int:
    """Return how many leading blocks have equal hashes."""
    pairs = zip(first.block_hashes, second.block_hashes, strict=False)
    return next((n for n, (one, two) in enumerate(pairs) if one != two), len(first.block_hashes))


def request(name: str, *, salt: bytes = b"") -> HashedRequest:
    """Return a request of five whole blocks and two tokens."""
    return HashedRequest(name, list(range(22)), salt)


@pytest.mark.parametrize(
    ("first", "blocks"),
    [
        pytest.param(0, 0, id="nothing-is-exact"),
        pytest.param(3, 0, id="inside-the-first-block"),
        pytest.param(8, 2, id="at-a-blocks-edge"),
        pytest.param(9, 2, id="behind-it"),
        pytest.param(19, 4, id="in-the-last-whole-block"),
    ],
)
def test_blocks_before_the_first_approximate_token_are_everybodys(first: int, blocks: int) -> None:
    """The block that holds it is not."""
    hashes, ordinary, read = BlockHashes(), request("ordinary"), request("read")

    assert hashes.enter(read, Space(first, b"seed"), BLOCK)

    assert blocks == shared(ordinary, read)
    assert set(ordinary.block_hashes[blocks:]).isdisjoint(read.block_hashes[blocks:])
    assert 5 == len(read.block_hashes)


def test_reads_with_the_same_seed_share_their_blocks() -> None:
    """And those of what they have generated."""
    hashes, reads = BlockHashes(), [request("one"), request("two")]

    for read in reads:
        hashes.enter(read, Space(9, b"seed"), BLOCK)
        read.answer([1, 2, 3])

    assert 6 == shared(*reads)


@pytest.mark.parametrize(
    ("space", "salt"),
    [
        pytest.param(Space(9, b"other"), b"", id="seed"),
        pytest.param(Space(13, b"seed"), b"", id="first"),
        pytest.param(Space(9, b"seed"), b"tenant", id="salt"),
    ],
)
def test_reads_that_differ_share_no_approximate_block(space: Space, salt: bytes) -> None:
    """In the seed, in where the approximate part begins, or in the chain before it."""
    hashes, one, two = BlockHashes(), request("one"), request("two", salt=salt)

    hashes.enter(one, Space(9, b"seed"), BLOCK)
    hashes.enter(two, space, BLOCK)

    assert set(one.block_hashes[2:]).isdisjoint(two.block_hashes[2:])


@pytest.mark.parametrize("first", [20, 22, 99])
def test_request_without_a_whole_approximate_block_stays_as_it_is(first: int) -> None:
    """There is nothing to name otherwise."""
    hashes, ordinary, read = BlockHashes(), request("ordinary"), request("read")

    assert not hashes.enter(read, Space(first, b"seed"), BLOCK)
    assert ordinary.block_hashes == read.block_hashes


@given(
    firsts=st.lists(st.integers(0, 30), max_size=4),
    answers=st.lists(st.lists(st.integers(0, 255), max_size=9), min_size=5, max_size=5),
)
def test_request_that_leaves_has_its_ordinary_hashes(firsts: list[int], answers: list[list[int]]) -> None:
    """Whatever it entered before, and whatever it has generated meanwhile."""
    hashes, ordinary, read = BlockHashes(), request("ordinary"), request("read")

    for first, answer in zip(firsts, answers, strict=False):
        hashes.enter(read, Space(first, b"seed"), BLOCK)
        read.answer(answer)
        ordinary.answer(answer)
    hashes.leave(read)

    assert ordinary.block_hashes == read.block_hashes


def test_another_request_under_a_forgotten_id_is_left_alone() -> None:
    """The hashes of a request that ended are not given to the next one."""
    hashes, read = BlockHashes(), request("read")
    hashes.enter(read, Space(9, b"seed"), BLOCK)

    hashes.forget("read")
    other = HashedRequest("read", [9] * 22)
    before = list(other.block_hashes)
    hashes.leave(other)

    assert before == other.block_hashes
