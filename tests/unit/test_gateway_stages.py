"""The deciding stages, from bytes to a plan to the body for one engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.content import ContentId
from sternpost_core.jsonspan import scan
from sternpost_core.kill import KillLevel
from sternpost_core.policy import Policy
from sternpost_core.policy_match import PolicySet
from sternpost_core.policy_parse import parse
from sternpost_fakes.clock import FakeClock
from sternpost_fakes.gateway import SUPPORT_POLICY
from sternpost_gateway.bypass import Bypass
from sternpost_gateway.canonicalize import canonicalize
from sternpost_gateway.compose import Composed, Metering, compose
from sternpost_gateway.fleet import Engine, Info, Plugin
from sternpost_gateway.headers import Headers
from sternpost_gateway.identify import identify
from sternpost_gateway.kills import KillTable
from sternpost_gateway.plan import Planned, plan
from sternpost_gateway.receive import CHAT_PATH, COMPLETIONS_PATH, Received
from sternpost_gateway.segment import chat_of, segment
from sternpost_gateway.tails import Tails
from sternpost_gateway.tokens import TailFacts
from sternpost_gateway.versions import Versions

SECRET = b"s" * 32
ENGINE = Engine("http://engine")
READY = Info(plugin=Plugin.READY, batch="b1", tail_tokens_min=4, tail_tokens_max=4096)

SYSTEM = {"role": "system", "content": "You help ."}
TAIL = {"role": "system", "content": "rules"}
USER = {"role": "user", "content": "hi"}
CHAT = {"model": "qwen", "messages": [SYSTEM, USER, TAIL]}
MOVED = {"model": "qwen", "messages": [SYSTEM, TAIL, USER]}


def policy(**changes: Any) -> Policy:
    """Return the support policy with other parts of its spec; None takes a part away."""
    mapping = yaml.safe_load(SUPPORT_POLICY)
    for key, changed in changes.items():
        if changed is None:
            del mapping["spec"][key]
        else:
            mapping["spec"][key] = changed
    return parse(mapping)


PRESERVE = {"layout": "Preserve", "tail": {"source": "LastSystemMessage"}}
MIDDLE_TAIL = {"model": "qwen", "messages": [SYSTEM, USER, TAIL, USER]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Everything that a decision depends on."""

    body: Mapping[str, Any]
    policy: Policy | None = None
    headers: Headers = ((b"x-tenant-id", b"acme"),)
    level: KillLevel = KillLevel.NONE
    path: str = CHAT_PATH
    request_id: str = "id-1"

    def plan(self) -> Planned:
        """Run the deciding stages."""
        received = Received(
            method="POST",
            path=self.path,
            target=self.path,
            headers=self.headers,
            request_id=self.request_id,
            arrived=0.0,
            has_body=False,
            document=scan(json.dumps(self.body).encode()),
        )
        chosen = (self.policy or policy(),)
        kills = KillTable(levels={chosen[0].full_name: self.level}, epochs={chosen[0].full_name: 7})
        identified = identify(received, PolicySet(chosen), kills)
        return plan(segment(canonicalize(identified)), SECRET, Versions(None))

    def compose(self, tails: Tails | None = None, info: Info = READY) -> Composed:
        """Run all stages up to the body."""
        return compose(self.plan(), ENGINE, info, tails or Tails(FakeClock()))


def body_of(composed: Composed) -> Any:
    """Return a composed body, decoded."""
    assert composed.body is not None
    return json.loads(composed.body)


def learned(planned: Planned, tokens: int = 300) -> Tails:
    """Return tails that know the tokens of a plan's template."""
    tails = Tails(FakeClock())
    assert planned.wish is not None
    facts = TailFacts((1, 2), tuple(range(tokens)), 2, ContentId("c" * 64))
    tails.learn(planned.wish.template.template_id, facts)
    return tails


def test_messages_are_segmented_by_role() -> None:
    """The leading run is the prefix, the last fixed message behind it the tail."""
    developer = {"role": "developer", "content": "x"}
    chat = chat_of(scan(json.dumps({"messages": [SYSTEM, developer, USER, TAIL, USER, TAIL, USER]}).encode()))

    assert chat is not None
    assert (2, 5) == (chat.opening, chat.tail)


@pytest.mark.parametrize(
    ("messages", "opening", "tail"),
    [
        pytest.param([], 0, None, id="none"),
        pytest.param([SYSTEM], 1, None, id="system-only"),
        pytest.param([SYSTEM, TAIL], 2, None, id="all-leading"),
        pytest.param([USER], 0, None, id="user-only"),
        pytest.param([USER, TAIL], 0, 1, id="tail-without-prefix"),
        pytest.param([{"role": "user", "content": "system"}, TAIL], 0, 1, id="user-who-says-system"),
        pytest.param([3, "x", None, TAIL], 0, 3, id="no-objects"),
        pytest.param([{"content": "system"}, {"role": ["system"]}], 0, None, id="no-roles"),
    ],
)
def test_odd_chats_are_segmented(messages: list[Any], opening: int, tail: int | None) -> None:
    """What a client sends in the place of messages never stops the stages."""
    chat = chat_of(scan(json.dumps({"messages": messages}).encode()))

    assert chat is not None
    assert (opening, tail) == (chat.opening, chat.tail)


@pytest.mark.parametrize(
    "body", [{}, {"messages": None}, {"messages": {"role": "system"}}, {"messages": "x"}]
)
def test_body_without_messages_is_no_chat(body: Any) -> None:
    """Without an array there is nothing to segment."""
    assert chat_of(scan(json.dumps(body).encode())) is None


def test_ids_do_not_depend_on_member_order() -> None:
    """The same message with its members in another order is the same message."""
    one = chat_of(
        scan(
            b'{"messages":[{"role":"system","content":"a"},{"role":"user"},{"role":"system","content":"t"}]}'
        )
    )
    two = chat_of(
        scan(b'{"messages":[{"content":"a","role":"system"},{},{"content": "t", "role": "system"}]}')
    )

    assert one is not None and two is not None
    assert (one.prefix_id, one.tail_id) == (two.prefix_id, two.tail_id)


def test_tools_are_part_of_the_prefix() -> None:
    """Other tools make another prefix, and leave the tail as it is."""
    one, two = (chat_of(scan(json.dumps({**CHAT, "tools": [tool]}).encode())) for tool in (1, 2))

    assert one is not None and two is not None
    assert one.prefix_id != two.prefix_id and one.tail_id == two.tail_id


@pytest.mark.parametrize(
    ("scene", "expected"),
    [
        pytest.param(Scene(body=CHAT), None, id="nothing-against-it"),
        pytest.param(Scene(body=MIDDLE_TAIL), None, id="tail-moves"),
        pytest.param(Scene(body=CHAT, level=KillLevel.NO_SUFFIX_READS), Bypass.KILLED, id="k1"),
        pytest.param(Scene(body=CHAT, level=KillLevel.NO_REWRITE), Bypass.KILLED, id="k3"),
        pytest.param(Scene(body=CHAT, policy=policy(suffixCache=None)), Bypass.OBSERVING, id="observing"),
        pytest.param(
            Scene(body=CHAT, policy=policy(prompt={"tail": {"source": "Learned"}})),
            Bypass.NOT_AVAILABLE,
            id="learned",
        ),
        pytest.param(
            Scene(body=CHAT, policy=policy(tenancy={"tenantFrom": {"jwtClaim": "t"}})),
            Bypass.NOT_AVAILABLE,
            id="jwt-claim",
        ),
        pytest.param(
            Scene(body={"model": "qwen", "prompt": "x"}, path=COMPLETIONS_PATH), Bypass.NOT_CHAT, id="prompt"
        ),
        pytest.param(Scene(body={"model": "qwen"}), Bypass.NOT_CHAT, id="no-messages"),
        pytest.param(Scene(body={**CHAT, "prefix_cache": False}), Bypass.CLIENT_OFF, id="off-by-field"),
        pytest.param(Scene(body={**CHAT, "prefix_cache": True}), None, id="on-by-field"),
        pytest.param(
            Scene(body=CHAT, headers=((b"x-sternpost-cache", b"OFF"),)), Bypass.CLIENT_OFF, id="off-by-header"
        ),
        pytest.param(Scene(body={"model": "qwen", "messages": [SYSTEM, USER]}), Bypass.NO_TAIL, id="no-tail"),
        pytest.param(
            Scene(body=MIDDLE_TAIL, policy=policy(prompt=PRESERVE)), Bypass.TAIL_NOT_LAST, id="not-last"
        ),
        pytest.param(Scene(body={**CHAT, "documents": []}), Bypass.TEMPLATE_OPTIONS, id="documents"),
        pytest.param(Scene(body={**CHAT, "documents": None}), None, id="null-documents"),
    ],
)
def test_reasons_for_bypass(scene: Scene, expected: Bypass | None) -> None:
    """Each reason that does not depend on the engine is found, and a tail is wished for without one."""
    planned = scene.plan()

    assert expected is planned.bypass
    assert (expected is None) is (planned.wish is not None)


def test_request_without_policy_keeps_its_bytes() -> None:
    """What no policy matches goes out as the very object that came in."""
    composed = Scene(body={**CHAT, "model": "other"}).compose()

    assert composed.planned.policy is None
    assert composed.planned.identified.received.document is not None
    assert composed.body is composed.planned.identified.received.document.body


@pytest.mark.parametrize("model", ["qwen", "other"])
@pytest.mark.parametrize("level", [KillLevel.NONE, KillLevel.NO_REWRITE])
def test_reserved_fields_never_pass(model: str, level: KillLevel) -> None:
    """A client's salt, hints and switches stay here, with a policy or without, at any level."""
    sent = {
        "cache_salt": "mine",
        **MOVED,
        "model": model,
        "prefix_cache": True,
        "kv_transfer_params": {"sternpost": {"op": "build"}},
    }
    body = body_of(Scene(body=sent, level=level).compose())

    assert "mine" != body.get("cache_salt")
    assert not {"prefix_cache", "kv_transfer_params"} & body.keys()


def test_fixed_tail_moves_to_the_end() -> None:
    """The tail becomes the last message; nothing else in the messages changes."""
    body = body_of(Scene(body=MIDDLE_TAIL).compose())

    assert [SYSTEM, USER, USER, TAIL] == body["messages"]


@pytest.mark.parametrize(
    ("level", "moves", "salted", "op"),
    [
        pytest.param(KillLevel.NONE, True, True, "read", id="k0"),
        pytest.param(KillLevel.NO_SUFFIX_READS, True, True, "off", id="k1"),
        pytest.param(KillLevel.NEW_EPOCH, True, True, "off", id="k2"),
        pytest.param(KillLevel.NO_REWRITE, False, False, None, id="k3"),
        pytest.param(KillLevel.NO_AFFINITY, False, False, None, id="k4"),
        pytest.param(KillLevel.PLAIN_PROXY, False, False, None, id="k5"),
    ],
)
def test_kill_levels_switch_off_in_order(level: KillLevel, moves: bool, salted: bool, op: str | None) -> None:
    """K1 and K2 change no byte of the prompt; from K3 on the body goes out as it came."""
    scene = Scene(body=MIDDLE_TAIL, level=level)
    composed = scene.compose(learned(replace(scene, level=KillLevel.NONE).plan()))
    body = body_of(composed)
    hint = body.get("kv_transfer_params", {}).get("sternpost", {})

    assert (moves, salted, op) == (body["messages"][-1] == TAIL, "cache_salt" in body, hint.get("op"))
    assert salted or body == MIDDLE_TAIL


def test_k1_changes_only_the_operation() -> None:
    """Apart from the hint the body at K1 is the body at K0, byte for byte."""
    scene = Scene(body=MIDDLE_TAIL)
    tails = learned(scene.plan())
    bodies = [
        replace(scene, level=level).compose(tails).body
        for level in (KillLevel.NONE, KillLevel.NO_SUFFIX_READS)
    ]
    heads = [body.partition(b'"kv_transfer_params"')[0] for body in bodies if body is not None]

    assert 2 == len(heads) and heads[0] == heads[1]


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        pytest.param(KillLevel.NO_REWRITE, True, id="k3"),
        pytest.param(KillLevel.NO_AFFINITY, False, id="k4"),
    ],
)
def test_affinity_ends_at_its_level(level: KillLevel, expected: bool) -> None:
    """From K4 on requests go to the least loaded engine."""
    assert expected is (Scene(body=CHAT, level=level).plan().conversation is not None)


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


SHARED = {"isolation": "Shared", "tenantFrom": {"header": "x-tenant-id"}}
SESSION = {"isolation": "Session", "tenantFrom": {"header": "x-tenant-id"}}


def tenant(name: bytes, session: bytes = b"s1") -> Headers:
    """Return the headers of a tenant's session."""
    return ((b"x-tenant-id", name), (b"x-session-id", session))


@pytest.mark.parametrize(
    ("tenancy", "one", "two", "equal"),
    [
        pytest.param(None, tenant(b"acme"), tenant(b"acme", b"s2"), True, id="tenant-other-session"),
        pytest.param(None, tenant(b"acme"), tenant(b"globex"), False, id="tenant-other-tenant"),
        pytest.param(SESSION, tenant(b"acme"), tenant(b"acme"), True, id="session-same"),
        pytest.param(SESSION, tenant(b"acme"), tenant(b"acme", b"s2"), False, id="session-other-session"),
        pytest.param(SESSION, tenant(b"acme"), tenant(b"globex"), False, id="session-other-tenant"),
        pytest.param(SHARED, tenant(b"acme"), tenant(b"globex"), True, id="shared"),
    ],
)
def test_salts_keep_scopes_apart(tenancy: Any, one: Headers, two: Headers, equal: bool) -> None:
    """KV is shared within the policy's scope and nowhere else."""
    tested = policy(tenancy=tenancy) if tenancy else policy()
    salts = [Scene(body=CHAT, policy=tested, headers=headers).plan().salt for headers in (one, two)]

    assert equal is (salts[0] == salts[1])
    assert all(salt is not None and salt.startswith("sternpost-") for salt in salts)


def test_request_with_reuse_off_shares_with_nobody() -> None:
    """A request with reuse turned off neither finds anything nor leaves anything to be found."""
    off = {**CHAT, "prefix_cache": False}
    salts = {
        Scene(body=body, request_id=name).plan().salt for body in (CHAT, off) for name in ("id-1", "id-2")
    }

    assert 3 == len(salts)


def test_conversation_stays_together_without_a_session() -> None:
    """Later turns of a conversation have its key; another first message has another."""
    turns = [{**CHAT, "messages": [SYSTEM, USER, *more]} for more in ([], [{"role": "assistant"}, USER])]
    other = {**CHAT, "messages": [SYSTEM, {"role": "user", "content": "else"}]}
    keys = [Scene(body=body).plan().conversation for body in (*turns, other)]

    assert keys[0] == keys[1] != keys[2]


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


def test_versions_count_prefixes_and_tails() -> None:
    """A policy's request says which version of its prefix and tail it has."""
    assert "prefix=v1,tail=v1" == Scene(body=CHAT).plan().versions
    assert "prefix=v1" == Scene(body={"model": "qwen", "messages": [SYSTEM, USER]}).plan().versions


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
