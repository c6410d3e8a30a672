"""The engine's self-test: two requests of its own, and the verdict that follows from what became of them."""

import pytest

from sternpost_core.hint import Operation, Reason, parse_hint
from sternpost_engine.rules import Facts, Limits, read_wish
from sternpost_engine.self_test import (
    LAST_TOKENS,
    SCAFFOLD_TOKENS,
    SEED,
    Probe,
    SelfTest,
    Verdict,
    tail_tokens_for,
)

TAIL_TOKENS = 256


def make_test() -> SelfTest:
    """Return a self-test for a small vocabulary."""
    return SelfTest(vocabulary=1000, tail_tokens=TAIL_TOKENS)


def read_of(test: SelfTest) -> Probe:
    """Let the build end well, and return the read."""
    read = test.ended(test.begin().request_id, Reason.BUILT)
    assert read is not None
    return read


def test_nothing_has_been_found_before_it_runs() -> None:
    """Where it cannot run, that is how it stays."""
    test = make_test()

    assert (Verdict.NOT_RUN, None) == (test.verdict, test.reason)


@pytest.mark.parametrize("operation", [Operation.BUILD, Operation.READ])
def test_both_requests_pass_the_rules_of_all_others(operation: Operation) -> None:
    """They go the ways that clients' requests go, so that these ways are what is tested."""
    test = make_test()
    probe = test.begin() if operation is Operation.BUILD else read_of(test)

    wish = read_wish(
        Facts(request_id=probe.request_id, prompt=probe.prompt, transfer=probe.transfer), Limits()
    )

    assert wish.hint is not None
    assert (operation, SCAFFOLD_TOKENS, TAIL_TOKENS, LAST_TOKENS) == (
        wish.hint.op,
        wish.hint.prefix_tokens,
        wish.hint.tail_tokens,
        wish.hint.last,
    )


def test_both_requests_have_one_prompt_of_known_tokens() -> None:
    """The build's own tokens are computed again behind the same ones; each start takes the same."""
    test = make_test()
    build, read = test.begin(), read_of(make_test())

    assert build.prompt == read.prompt
    assert SCAFFOLD_TOKENS + TAIL_TOKENS == len(build.prompt)
    assert all(0 <= token < 1000 for token in build.prompt)
    assert build.prompt[SCAFFOLD_TOKENS] == build.prompt[-1], f"a token stands twice, with seed {SEED} too"
    assert parse_hint(build.transfer["sternpost"]).kind == parse_hint(read.transfer["sternpost"]).kind


def test_equal_keys_and_values_pass() -> None:
    """The store is used."""
    test = make_test()
    read = read_of(test)
    assert Verdict.RUNNING is test.verdict

    test.compared(equal=True)

    assert None is test.ended(read.request_id, Reason.HIT)
    assert (Verdict.PASSED, None) == (test.verdict, test.reason)


@pytest.mark.parametrize(
    ("equal", "reason", "told"),
    [
        pytest.param(False, Reason.HIT, "a splice computes other keys and values than", id="differs"),
        pytest.param(None, Reason.MIDDLE_TOO_LONG, "its read ended as middle_too_long", id="no-room"),
        pytest.param(True, Reason.COPY_FAILED, "its read ended as copy_failed", id="copy-failed"),
    ],
)
def test_anything_else_of_the_read_fails(equal: bool | None, reason: Reason, told: str) -> None:
    """With a reason that an operator can look for."""
    test = make_test()
    read = read_of(test)
    if equal is not None:
        test.compared(equal=equal)

    test.ended(read.request_id, reason)

    assert Verdict.FAILED is test.verdict
    assert f"self-test: {told}" in str(test.reason)


@pytest.mark.parametrize("reason", [Reason.UNSUPPORTED, Reason.POOL_FULL, Reason.TAIL_TOO_SHORT], ids=str)
def test_build_that_does_not_end_well_fails(reason: Reason) -> None:
    """No read follows."""
    test = make_test()

    assert None is test.ended(test.begin().request_id, reason)
    assert (Verdict.FAILED, f"self-test: its build ended as {reason.value}") == (test.verdict, test.reason)


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        pytest.param(Operation.BUILD, Reason.BUILDING, id="build-aborted"),
        pytest.param(Operation.BUILD, Reason.NOT_BUILT, id="build-forgotten"),
        pytest.param(Operation.READ, Reason.NOT_BUILT, id="tail-forgotten"),
        pytest.param(Operation.READ, Reason.HIT, id="read-aborted"),
        pytest.param(Operation.READ, Reason.BUSY, id="no-room-among-others"),
    ],
)
def test_what_is_cut_short_begins_again(operation: Operation, reason: Reason) -> None:
    """An engine that is put to sleep, reset or flooded at its start has shown nothing, good or bad."""
    test = make_test()
    first = test.begin() if operation is Operation.BUILD else read_of(test)

    again = test.ended(first.request_id, reason)

    assert make_test().begin() == again
    assert (Verdict.RUNNING, None) == (test.verdict, test.reason)
    read = test.ended("sternpost-self-test-build", Reason.BUILT)
    assert read is not None
    test.compared(equal=True)
    assert None is test.ended(read.request_id, Reason.HIT)
    assert Verdict.PASSED is test.verdict


def test_what_is_always_cut_short_fails() -> None:
    """An engine that takes one request at a time never has room for a splice."""
    test = make_test()
    read_of(test)
    for _ in range(2):
        assert test.ended("sternpost-self-test-read", Reason.BUSY) is not None
        assert test.ended("sternpost-self-test-build", Reason.BUILT) is not None

    assert None is test.ended("sternpost-self-test-read", Reason.BUSY)
    assert (Verdict.FAILED, "self-test: its read ended as busy") == (test.verdict, test.reason)


@pytest.mark.parametrize(
    ("request_id", "owned"),
    [("sternpost-self-test-build", True), ("sternpost-self-test-read", True), ("chatcmpl-1", False)],
)
def test_own_requests_are_known_by_their_ids(request_id: str, owned: bool) -> None:
    """They are neither counted nor reported."""
    assert owned is make_test().owns(request_id)


@pytest.mark.parametrize(
    ("shortest", "longest_request", "tail"),
    [
        pytest.param(256, 8192, 256, id="ordinary"),
        pytest.param(1024, 8192, 1024, id="engine-takes-long-tails-alone"),
        pytest.param(64, 200, 183, id="short-requests"),
        pytest.param(256, 200, 256, id="no-tail-fits"),
    ],
)
def test_tail_is_one_that_the_engine_takes(shortest: int, longest_request: int, tail: int) -> None:
    """And that fits into a request, scaffold and answer included, where any does."""
    assert tail == tail_tokens_for(shortest, longest_request)
    assert SCAFFOLD_TOKENS + tail + 1 == SelfTest(vocabulary=10, tail_tokens=tail).tokens
