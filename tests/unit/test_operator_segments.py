"""Gateways that number by themselves end up with the same numbers."""

from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.content import ContentId
from sternpost_core.policy_parse import parse
from sternpost_core.policy_status import SegmentVersion
from sternpost_fakes.policies import SMALLEST
from sternpost_gateway.versions import Versions
from sternpost_operator.gateways import HttpGatewayProbe, read_versions
from sternpost_operator.segments import KEPT, agree, merge_seen, write_segments

SHORT = [f"{number:016x}" for number in range(1, 10)]
LONG = [ContentId(f"{short}{'0' * 48}") for short in SHORT]


def tail(version: int, number: int) -> SegmentVersion:
    """Return a tail's version, as gateways say it."""
    return SegmentVersion("tail", version, LONG[number])


def kept(version: int, number: int) -> SegmentVersion:
    """Return a tail's version, as a status names it."""
    return SegmentVersion("tail", version, SHORT[number])


AGREED: dict[str, tuple[list[SegmentVersion], list[SegmentVersion], list[SegmentVersion]]] = {
    "nothing": ([], [], []),
    "first": ([], [tail(1, 0)], [kept(1, 0)]),
    "known": ([kept(1, 0)], [tail(1, 0)], [kept(1, 0)]),
    "known-by-another-number": ([kept(1, 0)], [tail(2, 0)], [kept(1, 0)]),
    "new": ([kept(1, 0)], [tail(2, 1)], [kept(1, 0), kept(2, 1)]),
    "two-of-one-number": ([], [tail(1, 0), tail(1, 1)], [kept(1, 0), kept(2, 1)]),
    "number-is-taken": ([kept(3, 0)], [tail(3, 1)], [kept(3, 0), kept(4, 1)]),
    "named-before": ([kept(5, 0)], [tail(2, 1)], [kept(5, 0)]),
    "newest-four": (
        [kept(1, 0), kept(2, 1), kept(3, 2), kept(4, 3)],
        [tail(7, 4)],
        [kept(2, 1), kept(3, 2), kept(4, 3), kept(7, 4)],
    ),
}


@pytest.mark.parametrize(("before", "seen", "expected"), AGREED.values(), ids=AGREED.keys())
def test_versions_are_agreed(
    before: list[SegmentVersion], seen: list[SegmentVersion], expected: list[SegmentVersion]
) -> None:
    """A number is given once, and to one content id."""
    assert tuple(expected) == agree(before, seen)


def test_segments_do_not_mix() -> None:
    """A prefix and a tail may both be v1."""
    prefix = SegmentVersion("prefix", 1, LONG[0])

    assert ["prefix", "tail"] == [one.segment for one in agree([], [tail(1, 0), prefix])]


def seen_by(gateway: Versions) -> dict[str, tuple[SegmentVersion, ...]]:
    """Return what a gateway's own page says, as the operator reads it."""
    return dict(
        read_versions({"policies": [{"policy": "default/p", "versions": gateway.shown("default/p")}]})
    )


uses = st.lists(st.tuples(st.integers(0, 2), st.integers(0, len(LONG) - 1), st.booleans()), max_size=30)


@given(uses)
def test_real_gateways_come_to_say_the_same(steps: list[tuple[int, int, bool]]) -> None:
    """Three gateways see tails in any order; asked twice, they have one number for each of the newest."""
    gateways = [Versions(None) for _ in range(3)]
    status: dict[str, Any] = {}

    def exchange() -> None:
        value = {**SMALLEST, "metadata": {"name": "p"}, "status": status}
        before = parse(value).segments
        merged = merge_seen(seen_by(gateway) for gateway in gateways)
        status["segments"] = write_segments(agree(before, merged.get("default/p", ())))
        for gateway in gateways:
            gateway.agree([parse({**value, "status": status})])

    for which, number, does_exchange in steps:
        gateways[which].version("default/p", "tail", LONG[number])
        if does_exchange:
            exchange()
    exchange()
    settled = status["segments"]
    exchange()

    assert len(settled) <= KEPT
    numbers = [entry["version"] for entry in status["segments"]]
    assert len(numbers) == len(set(numbers))
    for entry in status["segments"]:
        number = SHORT.index(entry["contentId"])
        said = {gateway.version("default/p", "tail", LONG[number]) for gateway in gateways}
        assert {int(entry["version"][1:])} == said


BROKEN: list[Any] = [
    None,
    [],
    {"policies": {}},
    {"policies": [7, {"policy": 1}]},
    {"policies": [{"policy": "a/b", "versions": {"tail": [{"version": 1}, "v1"], "prefix": "v1"}}]},
]


@pytest.mark.parametrize("answer", BROKEN)
def test_what_is_not_understood_is_passed_over(answer: object) -> None:
    """A gateway of another release says nothing rather than something wrong."""
    assert not any(read_versions(answer).values())


async def test_gateways_are_asked_for_versions() -> None:
    """One that does not answer says nothing."""
    page = {"policies": [{"policy": "a/b", "versions": {"tail": [{"version": "v2", "contentId": LONG[0]}]}}]}

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host == "down":
            raise httpx.ConnectError("refused")
        return httpx.Response(200, json=page)

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        seen = await HttpGatewayProbe(http).versions({"a": "http://up", "b": "http://down"})

    assert [{"a/b": (tail(2, 0),)}, {}] == seen
