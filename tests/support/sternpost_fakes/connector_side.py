"""The connector's half in the scheduler, over a fake scheduler and requests as vLLM has them."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any, Final

from sternpost_engine.operations import Built, Splice
from sternpost_engine.settings import EngineSettings
from sternpost_engine.tracks import Room
from sternpost_fakes.tail_requests import BLOCK_SIZE, SCAFFOLD, TAIL, build_facts
from sternpost_fakes.vllm_modules import import_object

ROOM: Final = Room(tokens=100, rows=8, tokens_max=100, rows_max=8)
"""What every step of the fake scheduler has."""


class FakePrefillStats:
    """Keeps what was set last."""

    def __init__(self) -> None:
        self.counts: tuple[int, int, int] | None = None

    def set(
        self, num_prompt_tokens: int, num_local_cached_tokens: int, num_external_cached_tokens: int
    ) -> None:
        """Keep the counts."""
        self.counts = (num_prompt_tokens, num_local_cached_tokens, num_external_cached_tokens)


def request_of(facts: Any, **changes: Any) -> SimpleNamespace:
    """Return a request as vLLM has it."""
    values: dict[str, Any] = {
        "request_id": facts.request_id,
        "prompt_token_ids": list(facts.prompt),
        "num_prompt_tokens": len(facts.prompt),
        "kv_transfer_params": facts.transfer,
        "cache_salt": facts.salt or None,
        "lora_request": None,
        "pooling_params": None,
        "sampling_params": SimpleNamespace(prompt_logprobs=None),
        "mm_features": [],
        "prompt_embeds": None,
        "resumable": False,
        "max_tokens": 16,
        "num_preemptions": 0,
        "num_computed_tokens": 0,
        "skip_reading_prefix_cache": False,
        "block_hashes": [bytes([number]) for number in range(len(facts.prompt) // BLOCK_SIZE)],
        "update_block_hashes": lambda: None,
        "prefill_stats": FakePrefillStats(),
    }
    return SimpleNamespace(**{**values, **changes})


class FakeScheduler:
    """Has the same room in every step, and notes what is taken of it."""

    def __init__(self) -> None:
        self.taken: list[Splice] = []
        self.side: Any = None
        self.asked: list[Any] = []

    def room(self) -> Room:
        """Return the room."""
        return ROOM

    def take_room(self, splice: Splice) -> None:
        """Note the splice."""
        self.taken.append(splice)

    def ask_probe(self) -> None:
        """Note what the self-test asks."""
        self.asked.append(self.side.take_probe())


def make_side(
    connector: ModuleType,
    *,
    workers: int = 1,
    engines: int = 1,
    full_graphs: bool = False,
    v2_runner: bool = False,
    settings: EngineSettings | None = None,
) -> Any:
    """Return the scheduler's half over one layer, with short tails allowed."""
    torch = import_object("torch")
    spec = SimpleNamespace(num_kv_heads=1, head_size=8, head_size_v=8, dtype=torch.bfloat16)
    group = SimpleNamespace(kv_cache_spec=spec, layer_names=["layer-0", "layer-1"])
    config = SimpleNamespace(
        instance_id="start",
        use_v2_model_runner=v2_runner,
        model_config=SimpleNamespace(
            hf_text_config=SimpleNamespace(),
            model="m",
            revision=None,
            quantization=None,
            dtype=torch.bfloat16,
            tokenizer="m",
            tokenizer_revision=None,
            skip_tokenizer_init=True,
            max_model_len=4096,
            get_vocab_size=lambda: 1000,
        ),
        compilation_config=SimpleNamespace(
            cudagraph_mode=SimpleNamespace(has_full_cudagraphs=lambda: full_graphs)
        ),
        parallel_config=SimpleNamespace(tensor_parallel_size=workers, data_parallel_size=engines),
        cache_config=SimpleNamespace(cache_dtype="auto"),
    )
    side = connector.SchedulerSide(
        config,
        SimpleNamespace(kv_cache_groups=[group]),
        settings or EngineSettings(pool_bytes=10**6, tail_tokens_min=4),
    )
    side.kv_cache_manager = SimpleNamespace(get_block_ids=lambda request_id: (list(range(20)),))
    side.scheduler = FakeScheduler()
    side.scheduler.side = side
    return side


def build(connector: ModuleType, side: Any) -> None:
    """Build the tail."""
    side.add(request_of(build_facts("build")))
    side.close_step({"build": len(SCAFFOLD) + len(TAIL)})
    side.answer(connector.OutcomeMetadata({Built(1): 1}, set()))
