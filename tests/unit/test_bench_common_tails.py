"""A tail as an engine sees it, and its build."""

import pytest

from bench.common.tails import build_tail, common_tokens, measure_tail
from sternpost_core.errors import OperatingError
from sternpost_core.hint import Correction, Operation
from sternpost_fakes.bench_engine import ANSWER, CLOSE, OPEN, FakeEngine, answer_with, usage_of

PREFIX = [{"role": "system", "content": "tools first"}]
RULES = [{"role": "system", "content": "answer briefly"}]
CUE = {"role": "assistant", "content": "It is"}


async def test_a_tail_begins_behind_its_prefix_and_an_empty_middle() -> None:
    """Scaffold and tail make up the build's prompt; the middle stands where an empty message is filled."""
    fake = FakeEngine()

    tail = await measure_tail(fake.client(), "rules", RULES, prefix=PREFIX)

    assert tuple(fake.tokens(f"{OPEN} tools first {CLOSE} {OPEN} {CLOSE}")) == tail.scaffold
    assert tuple(fake.tokens(f"{OPEN} answer briefly {CLOSE} {ANSWER}")) == tail.tokens
    assert len(tail.scaffold) - 1 == tail.insert
    middle = [{"role": "user", "content": "where"}]
    assert [*PREFIX, *middle, *RULES] == tail.conversation(middle)


async def test_a_tail_may_end_with_the_beginning_of_the_answer() -> None:
    """Then nothing closes its last message."""
    fake = FakeEngine()

    tail = await measure_tail(fake.client(), "rules", [*RULES, CUE], continuing=True)

    assert tuple(fake.tokens(f"{OPEN} answer briefly {CLOSE} {OPEN} It is")) == tail.tokens


async def test_a_read_hint_names_what_was_measured() -> None:
    """Prefix and tail are counted; what is not changed is the policy's default."""
    tail = await measure_tail(FakeEngine().client(), "rules", RULES)

    hint = tail.read_hint(match=64, correction=Correction.CALIBRATED)

    assert (Operation.READ, tail.insert, len(tail.tokens), 0, 32, 64, Correction.CALIBRATED) == (
        hint.op,
        hint.prefix_tokens,
        hint.tail_tokens,
        hint.head,
        hint.last,
        hint.match,
        hint.correction,
    )


async def test_a_build_sends_scaffold_and_tail_and_nothing_else() -> None:
    """Its hint says where a middle would stand, for a calibration."""
    fake = FakeEngine({"/v1/completions": answer_with({"usage": usage_of(reason="built")})})
    engine = fake.client()
    tail = await measure_tail(engine, "rules", RULES)

    await build_tail(engine, tail, Correction.CALIBRATED, kind="letters")

    path, body = fake.asked[-1]
    hint = body["kv_transfer_params"]["sternpost"]
    assert ("/v1/completions", [*tail.scaffold, *tail.tokens]) == (path, body["prompt"])
    assert ("build", len(tail.scaffold), len(tail.tokens), tail.insert, "calibrated", "letters") == (
        hint["op"],
        hint["prefix_tokens"],
        hint["tail_tokens"],
        hint["insert"],
        hint["correction"],
        hint["kind"],
    )
    assert tail.read_hint().scaffold == hint["scaffold"]


async def test_a_tail_that_the_engine_holds_already_is_as_good_as_built() -> None:
    """Two scenarios may end with the same rules."""
    fake = FakeEngine({"/v1/completions": answer_with({"usage": usage_of(reason="hit")})})
    engine = fake.client()

    await build_tail(engine, await measure_tail(engine, "rules", RULES))

    assert "/v1/completions" == fake.asked[-1][0]


@pytest.mark.parametrize(
    ("usage", "words"),
    [
        pytest.param(usage_of(reason="pool_full"), "pool_full", id="refused"),
        pytest.param({"prompt_tokens": 9}, "no plugin", id="a plain engine"),
    ],
)
async def test_a_tail_that_was_not_built_is_an_error(usage: dict[str, object], words: str) -> None:
    """Otherwise every read would be a full prefill, and the figures would be of something else."""
    fake = FakeEngine({"/v1/completions": answer_with({"usage": usage})})
    tail = await measure_tail(fake.client(), "rules", RULES)

    with pytest.raises(OperatingError, match=f"tail rules was not built: .*{words}"):
        await build_tail(fake.client(), tail)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        pytest.param((1, 2, 3), (1, 2, 4), 2, id="part at the third"),
        pytest.param((1, 2), (1, 2, 3), 2, id="one is shorter"),
        pytest.param((), (1,), 0, id="nothing"),
    ],
)
def test_common_tokens_end_where_two_prompts_part(
    one: tuple[int, ...], other: tuple[int, ...], expected: int
) -> None:
    """The place where a middle begins."""
    assert expected == common_tokens(one, other)
