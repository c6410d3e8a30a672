"""What an engine's KV events say about what it holds."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from sternpost_fakes.kv_publisher import CLEARED, batch, hashes_of, removed, stored
from sternpost_gateway.kv_events import Change, Contents, KvEventsError, Message


def message(sequence: int, *events: Mapping[str, object]) -> Message:
    """Return a message."""
    return Message(sequence, batch(*events))


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param([stored(*hashes_of(3))], 48, id="stored"),
        pytest.param([stored(b"a"), stored(b"a", b"b")], 32, id="stored-twice-counts-once"),
        pytest.param([stored(*hashes_of(3)), removed(b"b1", b"unknown")], 32, id="removed"),
        pytest.param([stored(b"a"), CLEARED, stored(b"b", b"c")], 32, id="cleared"),
        pytest.param([stored(b"a"), stored(b"b", medium="CPU")], 16, id="copy-elsewhere"),
        pytest.param([stored(b"a"), removed(b"a", medium="CPU")], 16, id="copy-elsewhere-removed"),
        pytest.param([stored(b"a", group_idx=0), stored(b"b", group_idx=1)], 16, id="second-attention-group"),
        pytest.param([stored(b"a", session_id="s", something_new=1)], 16, id="fields-of-a-newer-release"),
        pytest.param([{**stored(b"a"), "block_hashes": [7, 8]}], 32, id="hashes-as-numbers"),
    ],
)
def test_held_tokens_are_those_of_blocks_on_the_gpu(
    events: list[Mapping[str, object]], expected: int
) -> None:
    """Each block counts once, where it can be reused at once."""
    assert expected == Contents().take(message(0, *events)).held_tokens


def test_gap_is_replayed_before_anything_behind_it() -> None:
    """A message behind a gap is taken after the replay, and what the replay holds is not taken twice."""
    contents = Contents()
    contents.take(message(0, stored(b"a")))
    gap = contents.take(message(2, removed(b"a")))
    contents.take_replayed(message(1, stored(b"b", b"c")))
    filled = contents.take_replayed(message(2, removed(b"a")))
    late = contents.take(message(3, stored(b"d")))

    assert (Change(replay_from=1), 32, 48) == (gap, filled.held_tokens, late.held_tokens)


def test_published_message_that_was_replayed_already_is_passed_over() -> None:
    """A replay may be faster than what was published before it."""
    contents = Contents()
    for sequence in range(3):
        contents.take_replayed(message(sequence, stored(f"{sequence}".encode())))
    repeated = contents.take(message(2, removed(b"2")))

    assert Change(held_tokens=48) == repeated


def test_gap_that_cannot_be_replayed_leaves_the_amount_unknown() -> None:
    """Until everything is cleared, a part of what is held is unknown."""
    contents = Contents()
    contents.take(message(0, stored(b"a")))
    unknown = contents.take_replayed(message(5, stored(b"b")))
    cleared = contents.take(message(6, CLEARED))
    known = contents.take(message(7, stored(b"c")))

    assert [None, 0, 16] == [change.held_tokens for change in (unknown, cleared, known)]
    assert [False, True, False] == [change.emptied for change in (unknown, cleared, known)]


@pytest.mark.parametrize(
    ("sequence", "replay_from", "held"),
    [
        pytest.param(0, None, 16, id="from-the-beginning"),
        pytest.param(1, 0, None, id="with-messages-missed"),
        pytest.param(4, 0, None, id="at-the-same-number"),
    ],
)
def test_numbers_that_go_back_mean_another_start(
    sequence: int, replay_from: int | None, held: int | None
) -> None:
    """All that was known is void; what the new start said before is asked for."""
    contents = Contents()
    for before in range(5):
        contents.take(message(before, stored(f"{before}".encode())))
    change = contents.take(message(sequence, stored(b"new")))

    assert Change(replay_from=replay_from, emptied=True, held_tokens=held) == change


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xc1", id="no-message-pack"),
        pytest.param(msgspec.msgpack.encode({"ts": 1}), id="no-batch"),
        pytest.param(batch({"type": "BlockMoved"}), id="unknown-event"),
        pytest.param(batch({"type": "BlockStored", "block_hashes": "x", "block_size": 16}), id="wrong-type"),
    ],
)
def test_batch_that_cannot_be_understood_is_an_error(payload: bytes) -> None:
    """What is not known is not guessed."""
    with pytest.raises(KvEventsError):
        Contents().take(Message(0, payload))
