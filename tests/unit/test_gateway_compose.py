"""The body for one engine, and what that engine is expected to reuse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.kill import KillLevel
from sternpost_fakes.clock import FakeClock
from sternpost_fakes.gateway_scene import (
    CHAT,
    ENGINE,
    READY,
    Scene,
    body_of,
    learned,
)
from sternpost_gateway.bypass import Bypass
from sternpost_gateway.compose import Metering
from sternpost_gateway.fleet import Info, Plugin
from sternpost_gateway.tails import Tails


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        pytest.param(Info(plugin=Plugin.UNKNOWN), Bypass.NO_PLUGIN, id="unknown"),
        pytest.param(Info(plugin=Plugin.ABSENT), Bypass.NO_PLUGIN, id="absent"),
        pytest.param(Info(plugin=Plugin.UNSUPPORTED), Bypass.UNSUPPORTED, id="unsupported"),
    ],
)
def test_engine_without_the_plugin_gets_no_hint(info: Info, expected: Bypass) -> None:
    """An engine that cannot read hints is sent none, and its prefixes are kept apart all the same."""
    scene = Scene(body=CHAT)
    composed = scene.compose(learned(scene.plan()), info)

    assert expected is composed.outlook.bypass
    assert "kv_transfer_params" not in body_of(composed) and "cache_salt" in body_of(composed)


def test_unknown_tail_is_wanted() -> None:
    """The first request with a tail finds its tokens unknown and asks for them."""
    outlook = Scene(body=CHAT).compose().outlook

    assert (Bypass.TAIL_UNKNOWN, None) == (outlook.bypass, outlook.hint)
    assert outlook.wanted is not None


def test_refused_tail_is_left_alone() -> None:
    """What the engine has refused is not asked for again, and not read."""
    scene = Scene(body=CHAT)
    wish = scene.plan().wish
    assert wish is not None
    tails = Tails(FakeClock())
    tails.refuse(wish.template.template_id, Bypass.TAIL_REFUSED, 60.0)
    outlook = scene.compose(tails).outlook

    assert (Bypass.TAIL_REFUSED, None, None) == (outlook.bypass, outlook.hint, outlook.wanted)


@pytest.mark.parametrize(
    ("tokens", "info", "expected"),
    [
        pytest.param(255, READY, Bypass.TAIL_TOO_SHORT, id="below-the-policy"),
        pytest.param(256, READY, Bypass.NOT_BUILT, id="at-the-policy"),
        pytest.param(299, replace(READY, tail_tokens_min=300), Bypass.TAIL_TOO_SHORT, id="below-the-engine"),
        pytest.param(4096, READY, Bypass.NOT_BUILT, id="at-the-engine"),
        pytest.param(4097, READY, Bypass.TAIL_TOO_LONG, id="above-the-engine"),
        pytest.param(4097, replace(READY, tail_tokens_max=0), Bypass.NOT_BUILT, id="engine-without-limit"),
    ],
)
def test_length_decides(tokens: int, info: Info, expected: Bypass) -> None:
    """A tail outside of what policy and engine take is left alone; the bounds themselves are inside."""
    scene = Scene(body=CHAT)

    assert expected is scene.compose(learned(scene.plan(), tokens), info).outlook.bypass


def test_built_tail_is_read() -> None:
    """A read's hint repeats what the tail was built with, and the policy's recomputation."""
    scene = Scene(body=CHAT)
    planned = scene.plan()
    assert planned.wish is not None
    tails = learned(planned)
    tails.hit(ENGINE, planned.wish.key)
    composed = scene.compose(tails)

    assert (None, 300 - 32) == (composed.outlook.bypass, composed.outlook.reuse_tokens)
    assert {
        "v": 1,
        "op": "read",
        "tail_tokens": 300,
        "prefix_tokens": 2,
        "epoch": 7,
        "mode": "rotate",
        "anchor": 0,
        "head": 0,
        "last": 32,
        "match": 0,
        "kind": "",
        "correction": "calibrated",
        "insert": 0,
        "scaffold": "c" * 64,
    } == body_of(composed)["kv_transfer_params"]["sternpost"]


def test_tail_being_built_is_not_wanted_again() -> None:
    """While a build is under way nobody asks for another."""
    scene = Scene(body=CHAT)
    planned = scene.plan()
    assert planned.wish is not None
    tails = learned(planned)
    tails.begin_build(ENGINE, planned.wish.key)
    outlook = scene.compose(tails).outlook

    assert (Bypass.BUILDING, None) == (outlook.bypass, outlook.wanted)


@pytest.mark.parametrize(
    ("fields", "metering", "options"),
    [
        pytest.param({}, Metering.BODY, None, id="complete"),
        pytest.param({"stream": False}, Metering.BODY, None, id="not-streamed"),
        pytest.param({"stream": True}, Metering.FILTER, {"include_usage": True}, id="absent"),
        pytest.param(
            {"stream": True, "stream_options": None}, Metering.FILTER, {"include_usage": True}, id="null"
        ),
        pytest.param(
            {"stream": True, "stream_options": {}}, Metering.FILTER, {"include_usage": True}, id="empty"
        ),
        pytest.param(
            {"stream": True, "stream_options": {"include_usage": False, "x": 1}},
            Metering.FILTER,
            {"include_usage": True, "x": 1},
            id="declined",
        ),
        pytest.param(
            {"stream": True, "stream_options": {"include_usage": True}},
            Metering.STREAM,
            {"include_usage": True},
            id="asked",
        ),
        pytest.param(
            {"stream": True, "stream_options": {"include_usage": 1}},
            Metering.STREAM,
            {"include_usage": 1},
            id="asked-in-another-way",
        ),
        pytest.param(
            {"stream": True, "stream_options": {"continuous_usage_stats": True}},
            Metering.FILTER,
            {"continuous_usage_stats": False, "include_usage": True},
            id="continuous-of-none",
        ),
        pytest.param(
            {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
            Metering.STREAM,
            {"include_usage": True, "continuous_usage_stats": True},
            id="continuous",
        ),
        pytest.param({"stream": True, "stream_options": [1]}, Metering.NONE, [1], id="no-object"),
    ],
)
def test_usage_is_asked_for_when_it_can_be_dropped_again(
    fields: Any, metering: Metering, options: Any
) -> None:
    """A hinted stream brings its usage, whatever else the client's options say."""
    scene = Scene(body={**CHAT, **fields})
    composed = scene.compose(learned(scene.plan()))

    assert (metering, options) == (composed.metering, body_of(composed).get("stream_options"))


def test_stream_without_hint_is_left_alone() -> None:
    """Where nothing is to be learned from usage it is not asked for."""
    composed = Scene(body={**CHAT, "stream": True}).compose()

    assert Metering.NONE is composed.metering
    assert "stream_options" not in body_of(composed)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
ROLES = st.sampled_from(["system", "developer", "user", "assistant", "tool"])
MESSAGES = st.lists(st.fixed_dictionaries({"role": ROLES, "content": JSON_VALUES}) | JSON_VALUES, max_size=6)


@given(
    MESSAGES,
    st.dictionaries(st.sampled_from(["stream_options", "tools", "stream", "cache_salt", "x"]), JSON_VALUES),
    st.sampled_from(list(KillLevel)),
)
def test_whatever_is_sent_every_unowned_value_arrives(
    messages: list[Any], fields: dict[str, Any], level: KillLevel
) -> None:
    """All values but those that the gateway owns arrive unchanged, and messages change places at most."""
    scene = Scene(body={"model": "qwen", "messages": messages, **fields}, level=level)
    planned = scene.plan()
    tails = learned(planned) if planned.wish else Tails(FakeClock())
    body = body_of(scene.compose(tails))
    owned = {"cache_salt", "kv_transfer_params", "prefix_cache", "stream_options", "messages"}

    assert {key: scene.body[key] for key in scene.body if key not in owned} == {
        key: body[key] for key in body if key not in owned
    }
    assert sorted(map(repr, messages)) == sorted(map(repr, body["messages"]))
