"""Pins: equivalent lists of tools get the same bytes, and only they do."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.jsonspan import scan
from sternpost_gateway.tool_pins import AGENTS_MAX, LIST_BYTES_MAX, Scope, Settled, ToolPins, ToolsOutcome

SCOPE = Scope("agents/support", "acme")


def tool(name: str, **function: Any) -> dict[str, Any]:
    """Return a function of this name."""
    return {"type": "function", "function": {"name": name, **function}}


ALPHA, BETA, DELTA = (tool(name) for name in ("alpha", "beta", "delta"))


def settle(pins: ToolPins, tools: Any, session: str | None = None, scope: Scope = SCOPE) -> Settled:
    """Settle a list as a body holds it."""
    raw = tools if isinstance(tools, bytes) else json.dumps(tools).encode()
    document = scan(b'{"tools":' + raw + b"}")
    return pins.settle(scope, session, document, document.members["tools"].value_span)


def sent(pins: ToolPins, tools: Any, session: str | None = None, scope: Scope = SCOPE) -> bytes:
    """Return the bytes that go out for a list."""
    settled = settle(pins, tools, session, scope)
    raw = tools if isinstance(tools, bytes) else json.dumps(tools).encode()
    assert (settled.form is not None) == (settled.outcome is ToolsOutcome.PINNED)
    return raw if settled.form is None else settled.form


def names(raw: bytes) -> list[str]:
    """Return the names of a list's tools."""
    return [one["function"]["name"] for one in json.loads(raw)]


def test_first_form_is_kept_for_all_that_follow() -> None:
    """The first list in order goes out as it came; equivalent ones take its bytes, white space included."""
    pins = ToolPins()
    first = b'[{"type": "function", "function": {"name": "alpha"}}, {"type": "function"}]'
    later = b'[{"type":"function"},{"function":{"name":"alpha"},"type":"function"}]'
    ordered = b'[{"type": "function"}, {"type": "function", "function": {"name": "alpha"}}]'

    assert b'[{"type": "function"},{"type": "function", "function": {"name": "alpha"}}]' == sent(pins, first)
    assert sent(pins, first) == sent(pins, later) == sent(pins, ordered)


def test_ordered_list_passes_unchanged() -> None:
    """What is in order and seen for the first time keeps its very bytes."""
    pins = ToolPins()

    assert Settled(ToolsOutcome.SAME) == settle(pins, [ALPHA, BETA])
    assert Settled(ToolsOutcome.SAME) == settle(pins, [ALPHA, BETA])
    assert json.dumps([ALPHA, BETA]).encode() == sent(pins, [BETA, ALPHA])


def test_gateways_agree_on_the_order() -> None:
    """Gateways that have seen different lists first put the same tools in the same order."""
    one, two = ToolPins(), ToolPins()

    assert names(sent(one, [DELTA, ALPHA, BETA])) == names(sent(two, [BETA, DELTA, ALPHA]))


def test_tool_keeps_its_form_in_another_list() -> None:
    """A tool that is pinned goes out in that form whatever stands beside it."""
    pins = ToolPins()
    sent(pins, b'[{"type":"function","function":{"description":"d","name":"alpha"}}]')
    other = b'[{"type":"function","function":{"name":"alpha","description":"d"}},{"type":"x"}]'

    assert b'[{"type":"function","function":{"description":"d","name":"alpha"}},{"type":"x"}]' == sent(
        pins, other
    )


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        pytest.param([[ALPHA, DELTA], [ALPHA, BETA, DELTA]], ["alpha", "delta", "beta"], id="gains-one"),
        pytest.param([[BETA], [DELTA, ALPHA, BETA]], ["beta", "alpha", "delta"], id="gains-two"),
        pytest.param(
            [[ALPHA, DELTA], [ALPHA, BETA, DELTA], [BETA, DELTA, ALPHA]],
            ["alpha", "delta", "beta"],
            id="again",
        ),
        pytest.param(
            [[ALPHA, DELTA], [ALPHA, BETA, DELTA], [BETA, DELTA]], ["delta", "beta"], id="loses-one"
        ),
        pytest.param(
            [[ALPHA, DELTA], [tool("alpha", description="new"), BETA, DELTA]],
            ["alpha", "delta", "beta"],
            id="changes-one",
        ),
        pytest.param([[BETA, DELTA], [], [ALPHA, BETA]], ["beta", "alpha"], id="without-any-between"),
    ],
)
def test_session_keeps_its_tools_in_place(lists: list[list[Any]], expected: list[str]) -> None:
    """What a session has had stays where it was, and what is new follows in order."""
    pins = ToolPins()
    *_, last = [sent(pins, tools, session="s-1") for tools in lists]

    assert expected == names(last)
    assert sorted(expected) == names(sent(pins, lists[-1])) == names(sent(pins, lists[-1], session="s-2"))


def test_agents_of_a_session_do_not_move_each_others_tools() -> None:
    """An agent's tools go out as they did before, whoever had a turn since, up to the last few agents."""
    pins = ToolPins()
    main = [tool(name) for name in "abcd"]
    helpers = [[tool("c"), tool(f"x{number}")] for number in range(AGENTS_MAX - 1)]
    forms = {sent(pins, main, session="s-1")}
    for helper in helpers * 2:
        sent(pins, helper, session="s-1")
        forms.add(sent(pins, main, session="s-1"))

    assert {json.dumps(main).encode()} == forms


def test_orders_of_a_session_are_bounded() -> None:
    """What more agents had their turns than are remembered is forgotten: tools then follow the last one."""
    pins = ToolPins()
    main = [tool(name) for name in "abcd"]
    sent(pins, main, session="s-1")
    for number in range(AGENTS_MAX):
        sent(pins, [tool("c"), tool(f"x{number}")], session="s-1")

    assert ["c", "a", "b", "d"] == names(sent(pins, main, session="s-1"))


def test_scopes_know_nothing_of_each_other() -> None:
    """Another tenant's form, and another policy's, never reach a request."""
    pins = ToolPins()
    sent(pins, b'[{"function":{"name":"alpha"},"type":"function"}]')
    own = b'[{"type":"function","function":{"name":"alpha"}}]'

    assert own == sent(pins, own, scope=Scope("agents/support", "globex"))
    assert own == sent(pins, own, scope=Scope("agents/other", "acme"))
    assert own != sent(pins, own)


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        pytest.param([BETA, tool("alpha", strict=True)], ToolsOutcome.GUIDED, id="strict"),
        pytest.param([BETA, ALPHA, ALPHA], ToolsOutcome.DUPLICATE_TOOL_NAME, id="same-tool-twice"),
        pytest.param(
            [BETA, tool("alpha", description="d"), ALPHA],
            ToolsOutcome.DUPLICATE_TOOL_NAME,
            id="same-name-twice",
        ),
        pytest.param([BETA, 1], ToolsOutcome.NOT_TOOLS, id="number"),
        pytest.param({"b": 1}, ToolsOutcome.NOT_TOOLS, id="object"),
        pytest.param(None, ToolsOutcome.NOT_TOOLS, id="null"),
        pytest.param(
            [BETA, tool("alpha", description="d" * LIST_BYTES_MAX)], ToolsOutcome.TOO_LARGE, id="large"
        ),
        pytest.param([], ToolsOutcome.SAME, id="empty"),
    ],
)
def test_list_that_must_not_be_touched_is_not(tools: Any, expected: ToolsOutcome) -> None:
    """Such a list keeps its bytes, the first time and every time."""
    pins = ToolPins()

    assert [Settled(expected)] * 2 == [settle(pins, tools, "s-1") for _ in range(2)]


def test_forgotten_pins_cost_no_more_than_reuse() -> None:
    """Where there is no room for pins, lists are still put in order."""
    pins = ToolPins(scopes_max=1, bytes_max=0)

    assert [["alpha", "beta"]] * 2 == [names(sent(pins, [BETA, ALPHA])) for _ in range(2)]


DESCRIPTIONS = st.sampled_from(["d", "e"])
FUNCTIONS = st.fixed_dictionaries({}, optional={"description": DESCRIPTIONS, "title": DESCRIPTIONS})
LISTS = st.dictionaries(st.sampled_from("abcd"), FUNCTIONS).map(
    lambda found: [tool(name, **function) for name, function in found.items()]
)


def other_form(tools: list[Any], data: st.DataObject) -> list[Any]:
    """Return an equivalent list: tools and their members in another order."""
    return [
        {
            "function": {
                name: one["function"][name] for name in data.draw(st.permutations(list(one["function"])))
            },
            "type": one["type"],
        }
        for one in data.draw(st.permutations(tools))
    ]


@given(st.lists(LISTS, max_size=3), LISTS, st.data())
def test_equivalent_lists_get_equal_bytes(before: list[Any], tools: list[Any], data: st.DataObject) -> None:
    """Whatever was seen before, forms of one list go out as one, and settling again changes nothing."""
    pins = ToolPins()
    for earlier in before:
        sent(pins, earlier)
    form = sent(pins, tools)

    assert form == sent(pins, other_form(tools, data)) == sent(pins, form)
    assert sorted(map(repr, map(sorted_members, tools))) == sorted(
        map(repr, map(sorted_members, json.loads(form)))
    )


@given(LISTS, LISTS)
def test_other_lists_get_other_bytes(one: list[Any], two: list[Any]) -> None:
    """Lists that do not hold the same tools never get the same bytes."""
    pins = ToolPins()
    same = sorted(map(repr, map(sorted_members, one))) == sorted(map(repr, map(sorted_members, two)))

    assert same == (sent(pins, one) == sent(pins, two))


def sorted_members(one: dict[str, Any]) -> Any:
    """Return what a tool holds, whatever the order of its members."""
    return sorted(one["function"].items())
