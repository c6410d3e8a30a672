"""What gateways read of a policy's status, which never keeps a good spec from going live."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.policy_parse import parse
from sternpost_core.policy_status import SEGMENTS_MAX, SegmentVersion, segment_versions
from sternpost_fakes.policies import SMALLEST

ENTRY = {"segment": "tail", "version": "v12", "contentId": "0123456789abcdef"}


def status(*segments: object) -> dict[str, Any]:
    """Return a policy whose status names these segments."""
    return {**SMALLEST, "status": {"phase": "Canary", "segments": list(segments)}}


def test_versions_are_read() -> None:
    """A segment has its number and the beginning of its content id."""
    expected = (SegmentVersion("tail", 12, "0123456789abcdef"),)

    assert expected == segment_versions(status(ENTRY)) == parse(status(ENTRY)).segments


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"segment": "middle"}, id="no-such-segment"),
        pytest.param({"segment": ["tail"]}, id="segment-of-another-type"),
        pytest.param({"version": "12"}, id="no-v"),
        pytest.param({"version": "v0"}, id="zero"),
        pytest.param({"version": "v" + "9" * 40}, id="huge"),
        pytest.param({"version": 12}, id="number"),
        pytest.param({"contentId": "0123456789a"}, id="too-short"),
        pytest.param({"contentId": "0123456789ABCDEF"}, id="upper-case"),
        pytest.param({"contentId": None}, id="no-id"),
    ],
)
def test_entry_that_cannot_be_understood_is_passed_over(changes: dict[str, Any]) -> None:
    """What the operator got wrong costs an agreement, and no policy; good entries beside it count."""
    assert 1 == len(segment_versions(status({**ENTRY, **changes}, ENTRY)))


def test_entries_are_bounded() -> None:
    """No status is long enough to be a load."""
    assert SEGMENTS_MAX == len(segment_versions(status(*[ENTRY] * 100)))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["segments", "segment"]), inner)
    ),
    max_leaves=10,
)


@given(JSON)
def test_any_status_leaves_the_spec_alone(found: Any) -> None:
    """A policy goes live whatever its status holds."""
    assert "support-observe" == parse({**SMALLEST, "status": found}).name
