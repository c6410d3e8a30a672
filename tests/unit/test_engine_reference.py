"""The reference engine's splice against full prefill, on models of many families."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sternpost_engine.calibration import AS_BUILT, SCAFFOLD, Job, Mix
from sternpost_engine.matching import Run
from sternpost_engine.reference import (
    ReferenceModel,
    Splice,
    UnsupportedModelError,
    add_means,
    build_tail,
    computed_runs,
    encode_tail,
    prefill,
    splice,
)
from sternpost_engine.reference.angles import PROBE_TOKENS, probe_tokens, rotation_of
from sternpost_engine.reference.support import check_config, position_limit
from sternpost_engine.tensors import StoredTail
from sternpost_fakes.middles import CountedTexts, make_calibrator
from sternpost_fakes.tiny_models import FAMILIES, POSITIONS, VOCABULARY, tiny_model, tiny_network

EXACT = 1e-4
"""The largest difference of two logits that float32's rounding makes."""

TAIL = tuple((7 * number + 3) % VOCABULARY for number in range(40))
FRONT = tuple((5 * number + 1) % VOCABULARY for number in range(23))
OTHER_FRONT = tuple((11 * number + 2) % VOCABULARY for number in range(31))
ANSWER = (4, 9, 16)

RUNS = [
    pytest.param(computed_runs(40), id="last-token"),
    pytest.param(computed_runs(40, head=4, last=5, matched=[Run(10, 3), Run(20, 1)]), id="four-runs"),
    pytest.param(computed_runs(40, last=40), id="everything"),
]


def full(model: ReferenceModel, *, anchor: int | None = None) -> torch.Tensor:
    """Return the logits of full prefill of front, tail and answer."""
    cache = model.new_cache(POSITIONS)
    return prefill(model, cache, FRONT, TAIL, answer=ANSWER, anchor=anchor)


def spliced(
    model: ReferenceModel,
    tail: StoredTail,
    runs: tuple[Run, ...],
    *,
    anchor: int | None = None,
    mix: Mix = AS_BUILT,
) -> torch.Tensor:
    """Return the logits of a splice behind the same front, with the same answer."""
    request = Splice(front=FRONT, runs=runs, answer=ANSWER, anchor=anchor, mix=mix)
    return splice(model, model.new_cache(POSITIONS), tail, request)


class _Small:
    """Counted texts in the tokens of a tiny model's vocabulary."""

    def __init__(self, texts: CountedTexts) -> None:
        self._texts = texts

    def middle(self, kind: str, number: int, tokens: int) -> tuple[int, ...]:
        """Return so many tokens."""
        return _middle(len(self._texts.middle(kind, number, tokens)))


def _middle(tokens: int) -> tuple[int, ...]:
    return tuple((13 * number + tokens) % VOCABULARY for number in range(tokens))


def _job() -> Job:
    return Job(entry=0, scaffold=FRONT, insert=20, tail=TAIL, kind="")


def difference(expected: torch.Tensor, actual: torch.Tensor) -> float:
    """Return the largest difference of two logits."""
    assert expected.shape == actual.shape
    return float((expected - actual).abs().max())


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("family", FAMILIES)
def test_splice_of_kv_from_the_same_context_is_exact(family: str, runs: tuple[Run, ...]) -> None:
    """However many tokens are computed anew, for the sampled token and for every token of the answer."""
    model = tiny_model(family)
    tail = build_tail(model, FRONT, TAIL)

    assert difference(full(model), spliced(model, tail, runs)) < EXACT


@pytest.mark.parametrize("anchor", [None, len(FRONT), 200], ids=["rotate", "anchor-at-end", "anchor-far"])
@pytest.mark.parametrize("family", FAMILIES)
def test_first_layers_kv_can_stand_anywhere(family: str, anchor: int | None) -> None:
    """
    With one layer keys before rotation depend on their token alone, so a tail that was encoded elsewhere is
    exact: only the rotation can be wrong.
    """
    model = tiny_model(family, layers=1)
    tail = build_tail(model, OTHER_FRONT, TAIL)

    assert (
        difference(full(model, anchor=anchor), spliced(model, tail, computed_runs(40), anchor=anchor)) < EXACT
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_kv_from_another_context_shows(family: str) -> None:
    """With two layers the context colours the tail: otherwise the tests above would show nothing."""
    model = tiny_model(family)
    tail = build_tail(model, OTHER_FRONT, TAIL)

    assert difference(full(model), spliced(model, tail, computed_runs(40))) > 100 * EXACT


def test_computing_everything_forgets_what_was_stored() -> None:
    """A tail that is computed whole is exact, whatever was copied before."""
    model = tiny_model("llama")
    tail = build_tail(model, OTHER_FRONT, TAIL)

    assert difference(full(model), spliced(model, tail, computed_runs(40, last=40))) < EXACT


@settings(max_examples=15, deadline=None)
@given(held=st.integers(0, len(FRONT)))
def test_front_may_be_in_the_cache_already(held: int) -> None:
    """As a prefix cache holds it, in part or in whole."""
    model = tiny_model("llama-grouped")
    tail = build_tail(model, OTHER_FRONT, TAIL)
    cache = model.new_cache(POSITIONS)
    if held:
        prefill(model, cache, FRONT[:held], ())

    request = Splice(front=FRONT, runs=computed_runs(40, last=3), held=held, answer=ANSWER)

    assert difference(spliced(model, tail, request.runs), splice(model, cache, tail, request)) < EXACT


def test_cache_is_used_again_for_the_next_splice() -> None:
    """A second splice over the same front reads nothing that the first one left."""
    model = tiny_model("llama")
    cache = model.new_cache(POSITIONS)
    prefill(model, cache, FRONT, ())
    runs = computed_runs(40, last=3)
    for context in (OTHER_FRONT, FRONT):
        tail = build_tail(model, context, TAIL)
        request = Splice(front=FRONT, runs=runs, held=len(FRONT), answer=ANSWER)
        actual = splice(model, cache, tail, request)

        assert difference(spliced(model, tail, runs), actual) < EXACT


def test_tail_alone_is_encoded_from_the_first_position() -> None:
    """Behind nothing, the tail is the prompt."""
    model = tiny_model("llama", layers=1)
    alone = encode_tail(model, (), TAIL)
    behind = encode_tail(model, FRONT, TAIL)

    assert max(difference(a, b) for a, b in zip(alone.keys, behind.keys, strict=True)) < EXACT


def test_splice_in_bf16_is_as_close_as_bf16_is() -> None:
    """Keys are rounded once more; the result stays within the rounding of the model itself."""
    exact, rough = tiny_model("llama"), tiny_model("llama", dtype=torch.bfloat16)
    floor = difference(full(exact), full(rough).float())
    tail = build_tail(rough, FRONT, TAIL)

    assert 0.0 < difference(full(exact), spliced(rough, tail, computed_runs(40)).float()) < 2 * floor


def test_means_are_those_of_the_samples() -> None:
    """A mean over two middles is the mean of their KV, before rotation."""
    model = tiny_model("llama")
    texts = CountedTexts()
    stored = build_tail(model, FRONT, TAIL)
    calibrator = make_calibrator(samples=2, prompt_tokens_max=130, texts=_Small(texts))
    calibrator.want(_job())

    counts = add_means(model, stored, calibrator)

    lengths = [tokens for _, _, tokens in texts.asked]
    contexts = [(*FRONT[:20], *_middle(length), *FRONT[20:]) for length in lengths]
    samples = [encode_tail(model, context, TAIL).keys[1] for context in contexts]
    assert {0: 2} == counts
    assert difference(sum(samples) / len(samples), stored.means[0].kv.keys[1]) < EXACT


def test_samples_are_told_one_by_one() -> None:
    """So that a person can watch, in the order in which they are computed."""
    model = tiny_model("llama")
    stored = build_tail(model, FRONT, TAIL)
    calibrator = make_calibrator(samples=2, prompt_tokens_max=130, texts=_Small(CountedTexts()))
    calibrator.want(_job())
    told: list[int] = []

    add_means(model, stored, calibrator, lambda sample: told.append(sample.number))

    assert [0, 1] == told


def test_mix_lies_between_its_variants() -> None:
    """A request reads the share of each variant that it names."""
    model = tiny_model("llama")
    stored = build_tail(model, FRONT, TAIL)
    calibrator = make_calibrator(samples=1, prompt_tokens_max=130, texts=_Small(CountedTexts()))
    calibrator.want(_job())
    add_means(model, stored, calibrator)
    runs = computed_runs(40)

    whole = spliced(model, stored, runs, mix=Mix(((0, 1.0),)))
    none = spliced(model, stored, runs, mix=Mix(((SCAFFOLD, 1.0), (0, 0.0))))

    assert difference(spliced(model, stored, runs), none) < EXACT
    assert difference(whole, none) > EXACT


def test_anchor_inside_the_front_is_refused() -> None:
    """The tail would stand before the middle's end."""
    model = tiny_model("llama")
    tail = build_tail(model, FRONT, TAIL)

    with pytest.raises(ValueError, match="anchor 22 is not allowed; allowed: 23 and more"):
        spliced(model, tail, computed_runs(40), anchor=22)


@pytest.mark.parametrize(
    ("head", "last", "expected"),
    [
        pytest.param(0, 1, (Run(39, 1),), id="last-token"),
        pytest.param(8, 16, (Run(0, 8), Run(24, 16)), id="both-ends"),
        pytest.param(24, 16, (Run(0, 40),), id="they-meet"),
        pytest.param(0, 99, (Run(0, 40),), id="longer-than-the-tail"),
    ],
)
def test_runs_cover_the_tails_ends(head: int, last: int, expected: tuple[Run, ...]) -> None:
    """Head and last, or all of it in one."""
    assert expected == computed_runs(40, head=head, last=last)


@pytest.mark.parametrize(("head", "last"), [(-1, 1), (0, 0)], ids=["head", "last"])
def test_runs_without_a_last_token_are_refused(head: int, last: int) -> None:
    """Its output is what is sampled."""
    with pytest.raises(ValueError, match=f"head {head} and last {last} are not allowed"):
        computed_runs(40, head=head, last=last)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"is_encoder_decoder": True}, "an encoder and a decoder", id="encoder-decoder"),
        pytest.param({"kv_lora_rank": 64}, "multi-head latent attention", id="latent"),
        pytest.param({"layer_types": ["mamba"]}, "other kinds than attention", id="recurrent"),
        pytest.param(
            {"_attn_implementation": "flex_attention"}, "attention 'flex_attention'", id="attention"
        ),
        pytest.param({"rope_parameters": None}, "one set of rotary positions", id="no-rope"),
        pytest.param({"rope_parameters": {"full_attention": {}}}, "one set of rotary", id="two-ropes"),
        pytest.param({"rope_parameters": {"rope_type": "dynamic"}}, "rope_type 'dynamic'", id="dynamic"),
    ],
)
def test_models_that_cannot_be_spliced_are_refused(changes: dict[str, object], message: str) -> None:
    """With the reason, before anything is computed."""
    config = SimpleNamespace(**{"rope_parameters": {"rope_type": "default"}, **changes})

    with pytest.raises(UnsupportedModelError, match=message):
        check_config(config)


@pytest.mark.parametrize(
    ("rotary", "message"),
    [
        pytest.param(tiny_network("linear").base_model.rotary_emb, "turns its keys", id="other-angles"),
        pytest.param(torch.nn.Identity(), "gives no table", id="no-table"),
    ],
)
def test_angles_that_are_not_the_models_are_refused(rotary: torch.nn.Module, message: str) -> None:
    """Found out by a trial: equal tokens' first-layer keys are equal before rotation."""
    model = tiny_model("llama")
    cache = model.new_cache(2 * PROBE_TOKENS)
    prefill(model, cache, probe_tokens(VOCABULARY), ())
    keys, _ = cache.read(0, 0, 2 * PROBE_TOKENS)

    with pytest.raises(UnsupportedModelError, match=message):
        rotation_of(rotary, keys.contiguous(), POSITIONS)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        pytest.param(SimpleNamespace(max_position_embeddings=4096), 4096, id="models-own"),
        pytest.param(SimpleNamespace(max_position_embeddings=10**7), 65_536, id="bounded"),
        pytest.param(SimpleNamespace(max_position_embeddings=4096, sliding_window=512), 512, id="window"),
        pytest.param(SimpleNamespace(max_position_embeddings=4096, sliding_window=None), 4096, id="none"),
    ],
)
def test_positions_are_bounded(config: SimpleNamespace, expected: int) -> None:
    """By the model's length, its window, and the memory that angles take."""
    assert expected == position_limit(config)
