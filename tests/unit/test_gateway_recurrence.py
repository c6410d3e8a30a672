"""Which tails are worth building: those that come again, and those of which nobody can tell."""

from __future__ import annotations

from sternpost_core.content import ContentId
from sternpost_gateway.recurrence import NEW_MAX, Recurrence


def expected(recurrence: Recurrence, names: str, policy: str = "agents/support") -> str:
    """Return of these tails, a letter each, those that are expected to come again."""
    return "".join(name for name in names if recurrence.is_expected(policy, ContentId(name)))


def test_new_tails_are_expected_until_too_many_were_new() -> None:
    """The first tails are built at first sight; where nothing but new ones come, later ones are not."""
    names = "abcdefghijklmnop"

    assert names[:NEW_MAX] == expected(Recurrence(), names)


def test_tail_that_comes_again_is_expected() -> None:
    """A second sight is enough, whatever came before, and those that follow are given the benefit again."""
    recurrence = Recurrence()
    expected(recurrence, "abcdefghijklmnop")

    assert "" == expected(recurrence, "q")
    assert "qrs" == expected(recurrence, "qrs")


def test_policies_are_told_apart() -> None:
    """What one policy's clients do costs no other policy's tail anything."""
    recurrence = Recurrence()
    expected(recurrence, "abcdefghijklmnop")

    assert "q" == expected(recurrence, "q", policy="agents/other")
