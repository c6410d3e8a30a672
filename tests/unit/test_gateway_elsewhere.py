"""Whether conversations come through other gateways, too."""

from __future__ import annotations

from typing import Any

import pytest

from sternpost_fakes.gateway_scene import Scene
from sternpost_gateway import elsewhere
from sternpost_gateway.elsewhere import Elsewhere, goes_on

USER, ANSWER = {"role": "user", "content": "Where?"}, {"role": "assistant", "content": "There."}
SYSTEM = {"role": "system", "content": "Be brief."}


def noted(*requests: tuple[str, bool]) -> Elsewhere:
    """Return what is known after requests, each a conversation and whether it goes on."""
    found = Elsewhere()
    for conversation, is_later in requests:
        found.note(conversation, goes_on=is_later)
    return found


def begun(number: int) -> list[tuple[str, bool]]:
    """Return conversations of two turns that begin here."""
    return [(f"own-{place}", is_later) for place in range(number) for is_later in (False, True)]


def foreign(number: int) -> list[tuple[str, bool]]:
    """Return second turns of conversations that have begun elsewhere."""
    return [(f"other-{place}", True) for place in range(number)]


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        pytest.param([], True, id="at-the-start"),
        pytest.param(begun(100), True, id="all-begin-here"),
        pytest.param([*begun(20), *foreign(1), *begun(20)], True, id="a-single-one-comes-from-elsewhere"),
        pytest.param(foreign(2), False, id="two-in-a-row-come-from-elsewhere"),
        pytest.param([*foreign(4), *begun(40)], True, id="and-then-none-any-more"),
        pytest.param([pair for n in range(60) for pair in (*begun(1), (f"x-{n}", True))], False, id="half"),
        pytest.param([(f"first-{place}", False) for place in range(100)], True, id="new-ones-say-nothing"),
    ],
)
def test_conversations_that_go_on_unseen_tell_of_other_gateways(
    requests: list[tuple[str, bool]], expected: bool
) -> None:
    """One may be left from before a restart; where many do, others stand beside this gateway."""
    assert expected is noted(*requests).is_alone


def test_conversations_are_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was seen longest ago is forgotten first."""
    monkeypatch.setattr(elsewhere, "CONVERSATIONS_MAX", 3)
    many = [(f"own-{place}", False) for place in range(4)]

    assert noted(*many, *[("own-3", True)] * 4).is_alone
    assert not noted(*many, *[(f"own-{place}", True) for place in range(4)]).is_alone


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        pytest.param("/v1/chat/completions", {"messages": [SYSTEM, USER]}, False, id="first-turn"),
        pytest.param("/v1/chat/completions", {"messages": [SYSTEM, USER, SYSTEM]}, False, id="with-a-tail"),
        pytest.param("/v1/chat/completions", {"messages": [USER, USER]}, False, id="two-of-the-user"),
        pytest.param(
            "/v1/chat/completions", {"messages": [SYSTEM, USER, ANSWER, USER]}, True, id="second-turn"
        ),
        pytest.param("/v1/chat/completions", {"messages": [USER, ANSWER, USER]}, True, id="without-a-system"),
        pytest.param("/v1/chat/completions", {"messages": []}, False, id="no-messages"),
        pytest.param("/v1/chat/completions", {"messages": [USER, "There."]}, False, id="no-message"),
        pytest.param("/v1/responses", {"input": [USER, ANSWER, USER]}, True, id="second-response"),
        pytest.param("/v1/responses", {"input": "Where?"}, False, id="a-text"),
        pytest.param("/v1/completions", {"prompt": "Where?"}, False, id="a-prompt"),
        pytest.param("/v1/chat/completions", {}, False, id="nothing"),
    ],
)
def test_a_chat_goes_on_that_holds_an_answer_to_its_first_message(
    path: str, body: dict[str, Any], expected: bool
) -> None:
    """What an application puts in front or behind is no answer."""
    planned = Scene(body={"model": "qwen", **body}, path=path).plan()

    assert expected is goes_on(planned)
