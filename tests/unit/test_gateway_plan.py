"""The deciding stages, from bytes to a plan."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from sternpost_core.jsonspan import scan
from sternpost_core.kill import KillLevel
from sternpost_core.policy import Policy
from sternpost_fakes.gateway_scene import (
    CHAT,
    MIDDLE_TAIL,
    MOVED,
    PRESERVE,
    SYSTEM,
    TAIL,
    USER,
    Scene,
    body_of,
    learned,
    policy,
)
from sternpost_gateway.bypass import Bypass
from sternpost_gateway.headers import Headers
from sternpost_gateway.receive import COMPLETIONS_PATH
from sternpost_gateway.segment import TailPlace, chat_of


def test_messages_are_segmented_by_role() -> None:
    """The leading run is the prefix, the last fixed message behind it the tail."""
    developer = {"role": "developer", "content": "x"}
    chat = chat_of(scan(json.dumps({"messages": [SYSTEM, developer, USER, TAIL, USER, TAIL, USER]}).encode()))

    assert chat is not None
    assert (2, TailPlace(5)) == (chat.dialogue.opening, chat.place)


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
    assert (opening, tail) == (chat.dialogue.opening, chat.place.first if chat.place else None)


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
            Bypass.NOT_LEARNED,
            id="learned",
        ),
        pytest.param(
            Scene(body=CHAT, policy=policy(tenancy={"tenantFrom": {"jwtClaim": "t"}})),
            Bypass.NOT_AVAILABLE,
            id="jwt-claim",
        ),
        pytest.param(
            Scene(body={"model": "qwen", "prompt": "x"}, path=COMPLETIONS_PATH), Bypass.NO_TAIL, id="prompt"
        ),
        pytest.param(
            Scene(body={"model": "qwen", "prompt": ["x"]}, path=COMPLETIONS_PATH),
            Bypass.NOT_CHAT,
            id="prompts",
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


TAIL_FIRST = {"layout": "TailFirst", "tail": {"source": "LastSystemMessage"}}
TOOL_CALL = {"role": "assistant", "tool_calls": [{"id": "c1"}]}
TOOL = {"role": "tool", "tool_call_id": "c1", "content": "x"}


def tail_first(**changes: Any) -> Policy:
    """Return a policy that puts the tail in front, with other parts of its spec."""
    return policy(prompt=TAIL_FIRST, **changes)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        pytest.param([SYSTEM, USER, TAIL], [SYSTEM, TAIL, USER], id="from-the-end"),
        pytest.param([SYSTEM, USER, TAIL, USER], [SYSTEM, TAIL, USER, USER], id="from-the-middle"),
        pytest.param([USER, TAIL], [TAIL, USER], id="without-a-prefix"),
        pytest.param([SYSTEM, TAIL, USER], [SYSTEM, TAIL, USER], id="there-already"),
        pytest.param([SYSTEM, USER], [SYSTEM, USER], id="no-tail"),
        pytest.param(
            [SYSTEM, USER, TAIL, TOOL_CALL, TOOL, TAIL],
            [SYSTEM, TAIL, USER, TAIL, TOOL_CALL, TOOL],
            id="behind-a-tool-call",
        ),
    ],
)
def test_tail_first_moves_the_tail_behind_the_prefix(sent: list[Any], expected: list[Any]) -> None:
    """Prefix and tail stand together in front, and the rest keeps its order."""
    body = body_of(Scene(body={"model": "qwen", "messages": sent}, policy=tail_first()).compose())

    assert expected == body["messages"]


BEGUN = {"role": "assistant", "content": "The answer is"}


@pytest.mark.parametrize(
    ("layout", "sent", "goes_on", "expected"),
    [
        pytest.param("FixedTail", [USER, TAIL, BEGUN], True, [USER, TAIL, BEGUN], id="answer-begun"),
        pytest.param("FixedTail", [USER, TAIL, BEGUN], False, [USER, BEGUN, TAIL], id="answer-ended"),
        pytest.param("TailFirst", [USER, TAIL, BEGUN], True, [TAIL, USER, BEGUN], id="tail-first"),
        pytest.param("TailFirst", [USER, TAIL], True, [USER, TAIL], id="tail-goes-on"),
    ],
)
def test_message_that_is_to_go_on_stays_the_last(
    layout: str, sent: list[Any], goes_on: bool, expected: list[Any]
) -> None:
    """With `continue_final_message` the model goes on with the words of the last message, and of no other."""
    tested = policy(prompt={"layout": layout, "tail": {"source": "LastSystemMessage"}})
    options = {"add_generation_prompt": not goes_on, "continue_final_message": goes_on}
    body = {"model": "qwen", "messages": [SYSTEM, *sent], **options}

    assert [SYSTEM, *expected] == body_of(Scene(body=body, policy=tested).compose())["messages"]


@pytest.mark.parametrize("suffix_cache", [{}, None], ids=["with-suffix-cache", "without"])
@pytest.mark.parametrize("level", [KillLevel.NONE, KillLevel.NO_SUFFIX_READS, KillLevel.NEW_EPOCH], ids=str)
def test_tail_first_asks_nothing_of_the_suffix_store(level: KillLevel, suffix_cache: object) -> None:
    """No hint is sent, no tail is wished for, and the levels that stop reads change no byte of it."""
    tested = tail_first(suffixCache=suffix_cache)
    composed = Scene(body=MIDDLE_TAIL, policy=tested, level=level).compose()
    body = body_of(composed)
    planned = composed.planned

    assert (Bypass.TAIL_FIRST, None, None) == (planned.bypass, planned.wish, composed.outlook.hint)
    assert "prefix=v1,tail=v1" == planned.versions
    assert {"model", "messages", "cache_salt"} == body.keys()
    assert [SYSTEM, TAIL, USER, USER] == body["messages"]


@pytest.mark.parametrize(
    ("scene", "expected"),
    [
        pytest.param(
            Scene(body=CHAT, policy=tail_first(), level=KillLevel.NO_REWRITE), Bypass.KILLED, id="k3"
        ),
        pytest.param(
            Scene(body={**CHAT, "prefix_cache": False}, policy=tail_first()), Bypass.CLIENT_OFF, id="off"
        ),
        pytest.param(Scene(body={"model": "qwen"}, policy=tail_first()), Bypass.NOT_CHAT, id="no-chat"),
        pytest.param(
            Scene(body={"model": "qwen", "messages": [SYSTEM, USER]}, policy=tail_first()),
            Bypass.NO_TAIL,
            id="no-tail",
        ),
    ],
)
def test_reasons_for_bypass_under_tail_first(scene: Scene, expected: Bypass) -> None:
    """What stops the layout itself is said before it, and none of it sends a hint."""
    composed = scene.compose()

    assert (expected, None) == (composed.planned.bypass, composed.outlook.hint)


def test_no_rewrite_stops_tail_first() -> None:
    """From K3 on the body goes out as it came."""
    scene = Scene(body=MIDDLE_TAIL, policy=tail_first(), level=KillLevel.NO_REWRITE)

    assert MIDDLE_TAIL == body_of(scene.compose())


def test_tail_first_keeps_tenants_apart() -> None:
    """The prefix cache is salted by tenant, and a request with reuse off shares with nobody."""
    bodies: tuple[dict[str, Any], ...] = (CHAT, CHAT, {**CHAT, "prefix_cache": False})
    tenants = (b"acme", b"globex", b"acme")
    salts = [
        Scene(body=body, policy=tail_first(suffixCache=None), headers=((b"x-tenant-id", tenant),)).plan().salt
        for body, tenant in zip(bodies, tenants, strict=True)
    ]

    assert None not in salts and 3 == len(set(salts))


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({}, id="with-a-suffix-cache"),
        pytest.param({"suffixCache": None}, id="with-nothing-else-that-salts"),
        pytest.param({"prompt": TAIL_FIRST, "suffixCache": None}, id="tail-first"),
    ],
)
def test_another_prefix_epoch_reaches_nothing_of_the_last(spec: dict[str, Any]) -> None:
    """Salts differ, and with them every key in an engine's prefix cache and in its suffix store."""
    policies = [policy(**spec, tenancy={"prefixEpoch": epoch}) for epoch in (1, 2)]
    salts = [Scene(body=CHAT, policy=one).plan().salt for one in policies]

    assert None not in salts and 2 == len(set(salts))


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


def test_versions_count_prefixes_and_tails() -> None:
    """A policy's request says which version of its prefix and tail it has."""
    assert "prefix=v1,tail=v1" == Scene(body=CHAT).plan().versions
    assert "prefix=v1" == Scene(body={"model": "qwen", "messages": [SYSTEM, USER]}).plan().versions
