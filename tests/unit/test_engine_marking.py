"""The marker: stored tails by entry, and the words of a request's middle."""

import pytest

from sternpost_engine.marking import MIDDLE_TOKENS_MAX, Marker
from sternpost_engine.matching import Run
from sternpost_engine.vocabulary import Vocabulary
from sternpost_fakes.middles import make_marker

TAIL = tuple(range(500, 520))


def mark(marker: Marker, *middle: int, entry: int = 1, tokens_max: int = 9) -> tuple[Run, ...]:
    """Mark the tokens of a tail that a middle points at, with the bounds of a usual read."""
    return marker.mark(entry, middle, first=0, end=18, tokens_max=tokens_max)


def test_middle_points_at_the_tail_that_was_learnt() -> None:
    """Each entry has its own tail."""
    marker = make_marker()
    marker.learn(1, TAIL)
    marker.learn(2, TAIL[5:])

    assert (Run(7, 4),) == mark(marker, 3, 507, 4)
    assert (Run(2, 4),) == mark(marker, 3, 507, 4, entry=2)


@pytest.mark.parametrize(
    ("entry", "tokens_max"),
    [
        pytest.param(9, 9, id="never-learnt"),
        pytest.param(2, 9, id="forgotten"),
        pytest.param(1, 0, id="no-room"),
        pytest.param(1, -5, id="less-than-no-room"),
    ],
)
def test_nothing_is_marked(entry: int, tokens_max: int) -> None:
    """Where there is no tail, or no room."""
    marker = make_marker()
    marker.learn(1, TAIL)
    marker.learn(2, TAIL)
    marker.forget(2)

    assert () == mark(marker, 507, entry=entry, tokens_max=tokens_max)


def test_tail_that_was_never_learnt_is_forgotten_without_ado() -> None:
    """The planner forgets every entry that goes."""
    marker = make_marker()

    marker.forget(1)

    assert () == mark(marker, 507)


def test_common_words_point_at_nothing() -> None:
    """They are the marker's own, for all tails."""
    marker = Marker(Vocabulary(lambda token: f" word{token}"), frozenset({"word507"}))
    marker.learn(1, TAIL)

    assert (Run(9, 4),) == mark(marker, 507, 509)


def test_beginning_of_a_long_middle_is_not_read() -> None:
    """Reading takes time in the scheduler; what the user says last counts."""
    marker = make_marker()
    marker.learn(1, TAIL)
    rest = [7] * (MIDDLE_TOKENS_MAX - 1)

    assert (Run(3, 4),) == mark(marker, 503, *rest)
    assert () == mark(marker, 503, *rest, 7)
