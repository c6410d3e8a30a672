"""Which requests may use the suffix store: each reason that needs the request alone."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.hint import Hint, Mode, Operation, Reason
from sternpost_engine.rules import Facts, Limits, read_wish
from sternpost_fakes.tail_requests import MIDDLE, SCAFFOLD, TAIL, build_facts, read_facts, transfer_of

LIMITS = Limits(tail_tokens_min=4, tail_tokens_max=32)

READ, BUILD = read_facts("read"), build_facts("build")


def hinted(**hint: Any) -> dict[str, Any]:
    """Return `kv_transfer_params` of a read of `TAIL`, with the given fields in its hint."""
    good = Hint(op=Operation.READ, tail_tokens=len(TAIL), prefix_tokens=len(SCAFFOLD), last=2)
    return {"sternpost": {**good.to_mapping(), **hint}}


@pytest.mark.parametrize("facts", [READ, BUILD], ids=["read", "build"])
def test_good_request_keeps_its_hint(facts: Facts) -> None:
    """Whether its tail is stored is for the planner to find out."""
    wish = read_wish(facts, LIMITS)

    assert wish.hint is not None
    assert facts.transfer == transfer_of(wish.hint)
    assert Reason.NOT_BUILT is wish.reason


@pytest.mark.parametrize(
    ("transfer", "reason"),
    [
        pytest.param(None, Reason.NOT_ASKED, id="no-params"),
        pytest.param({}, Reason.NOT_ASKED, id="empty-params"),
        pytest.param([hinted()], Reason.NOT_ASKED, id="params-in-a-list"),
        pytest.param({"do_remote_prefill": True}, Reason.NOT_ASKED, id="anothers-params"),
        pytest.param({"sternpost": None}, Reason.BAD_HINT, id="null"),
        pytest.param({"sternpost": {}}, Reason.BAD_HINT, id="empty-hint"),
        pytest.param(hinted(v=2), Reason.BAD_HINT, id="version"),
        pytest.param(hinted(op="write"), Reason.BAD_HINT, id="operation"),
        pytest.param(hinted(op=None), Reason.BAD_HINT, id="operation-missing"),
        pytest.param(hinted(mode="gap"), Reason.BAD_HINT, id="mode"),
        pytest.param(hinted(tail_tokens="16"), Reason.BAD_HINT, id="count-as-text"),
        pytest.param(hinted(tail_tokens=-1), Reason.BAD_HINT, id="negative-count"),
        pytest.param(hinted(head=True), Reason.BAD_HINT, id="count-as-boolean"),
        pytest.param(hinted(scaffold="5" * 65), Reason.BAD_HINT, id="scaffold-too-long"),
        pytest.param(hinted(op="off"), Reason.OFF, id="killed"),
        pytest.param(hinted(op="off", tail_tokens=10**6), Reason.OFF, id="killed-whatever-else"),
        pytest.param(hinted(tail_tokens=34), Reason.BAD_HINT, id="tail-is-the-prompt"),
        pytest.param(hinted(tail_tokens=35), Reason.BAD_HINT, id="tail-over-the-prompt"),
        pytest.param(hinted(mode="anchor", anchor=64), Reason.ANCHOR_UNSUPPORTED, id="anchored"),
        pytest.param(hinted(tail_tokens=0), Reason.TAIL_SHARE_TOO_SMALL, id="no-tail"),
        pytest.param(hinted(tail_tokens=6), Reason.TAIL_SHARE_TOO_SMALL, id="under-the-share"),
        pytest.param(hinted(tail_tokens=7), Reason.NOT_BUILT, id="at-the-share"),
        pytest.param(hinted(head=13), Reason.NOT_BUILT, id="one-token-left-to-copy"),
        pytest.param(hinted(head=14), Reason.TAIL_TOO_SHORT, id="head-and-last-are-all"),
        pytest.param(hinted(last=16), Reason.TAIL_TOO_SHORT, id="last-is-all"),
        pytest.param(hinted(head=15, last=0), Reason.TAIL_TOO_SHORT, id="one-token-is-always-computed"),
        pytest.param(hinted(head=14, last=0), Reason.NOT_BUILT, id="one-token-copied-one-computed"),
        pytest.param(hinted(tail_tokens=33), Reason.TAIL_TOO_LONG, id="over-the-longest"),
        pytest.param(hinted(tail_tokens=32), Reason.NOT_BUILT, id="the-longest"),
        pytest.param(hinted(later="field"), Reason.NOT_BUILT, id="unknown-key"),
    ],
)
def test_hint_of_a_read(transfer: object, reason: Reason) -> None:
    """Each hint has one reason, and only a sound one is kept. The prompt has 34 tokens."""
    assert 34 == len(READ.prompt)

    wish = read_wish(replace(READ, transfer=transfer), LIMITS)

    assert reason is wish.reason
    assert (reason is Reason.NOT_BUILT) == (wish.hint is not None)


@pytest.mark.parametrize(
    ("tail_tokens", "reason"),
    [
        pytest.param(3, Reason.TAIL_TOO_SHORT, id="under-the-shortest"),
        pytest.param(4, Reason.NOT_BUILT, id="the-shortest"),
        pytest.param(32, Reason.NOT_BUILT, id="the-longest"),
        pytest.param(33, Reason.TAIL_TOO_LONG, id="over-the-longest"),
    ],
)
def test_length_of_a_built_tail(tail_tokens: int, reason: Reason) -> None:
    """What no request could read is not built."""
    assert reason is read_wish(build_facts("build", range(tail_tokens)), LIMITS).reason


@pytest.mark.parametrize(
    ("middle_tokens", "reason"),
    [
        pytest.param(12, Reason.NOT_BUILT, id="a-fifth"),
        pytest.param(13, Reason.TAIL_SHARE_TOO_SMALL, id="less"),
    ],
)
def test_share_of_the_prompt(middle_tokens: int, reason: Reason) -> None:
    """A tail that is just the share is taken: five of twenty-five tokens."""
    assert reason is read_wish(read_facts("read", range(5), middle=range(middle_tokens)), LIMITS).reason


@pytest.mark.parametrize("facts", [READ, BUILD], ids=["read", "build"])
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("pooling", Reason.POOLING),
        ("prompt_logprobs", Reason.PROMPT_LOGPROBS),
        ("multimodal", Reason.MULTIMODAL),
        ("remote_kv", Reason.REMOTE_KV),
        ("resumable", Reason.REMOTE_KV),
        ("adapter_unknown", Reason.UNSUPPORTED),
    ],
)
def test_kind_of_request_is_refused(facts: Facts, kind: str, reason: Reason) -> None:
    """Reading and building alike."""
    wish = read_wish(replace(facts, **{kind: True}), LIMITS)  # type: ignore[arg-type]

    assert (None, reason) == (wish.hint, wish.reason)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [pytest.param(READ, Reason.OFF, id="read"), pytest.param(BUILD, Reason.NOT_BUILT, id="build")],
)
def test_request_that_may_read_no_cached_kv_reads_no_tail(facts: Facts, reason: Reason) -> None:
    """A build reads nothing, and goes on."""
    assert reason is read_wish(replace(facts, cache_off=True), LIMITS).reason


def test_request_without_a_hint_is_not_refused_for_its_kind() -> None:
    """Who did not ask is counted as such, whatever the request is."""
    facts = replace(READ, transfer=None, pooling=True, multimodal=True)

    assert Reason.NOT_ASKED is read_wish(facts, LIMITS).reason


@given(prefix=st.integers(0, 80), tail=st.integers(0, 80), middle=st.integers(1, 20))
def test_build_with_a_middle_is_refused_whatever_the_hint_says(prefix: int, tail: int, middle: int) -> None:
    """
    Prefix and tail must be the whole prompt, to the token.

    This keeps one user's text out of the KV that others read.
    """
    hint = Hint(op=Operation.BUILD, prefix_tokens=prefix, tail_tokens=tail, last=1)
    facts = Facts(request_id="build", prompt=range(prefix + middle + tail), transfer=transfer_of(hint))

    wish = read_wish(facts, LIMITS)

    assert (None, Reason.BAD_HINT) == (wish.hint, wish.reason)


@given(prefix=st.integers(0, 80), tail=st.integers(0, 80))
def test_build_is_taken_exactly_when_its_hint_covers_the_prompt(prefix: int, tail: int) -> None:
    """Neither too few tokens nor too many are named."""
    prompt = (*SCAFFOLD, *MIDDLE, *TAIL)
    hint = Hint(op=Operation.BUILD, prefix_tokens=prefix, tail_tokens=tail, last=1)
    limits = Limits(tail_tokens_min=2, tail_tokens_max=80)

    wish = read_wish(Facts(request_id="build", prompt=prompt, transfer=transfer_of(hint)), limits)

    assert (prefix + tail == len(prompt) and tail >= 2) == (wish.hint is not None)


def test_defaults_are_those_of_the_documents() -> None:
    """A tail of 256 tokens and a fifth of the prompt is the least that is worth a place."""
    assert (256, 4096, 0.2) == (Limits().tail_tokens_min, Limits().tail_tokens_max, Limits().tail_share_min)
    assert Mode.ROTATE is Hint(op=Operation.READ).mode
