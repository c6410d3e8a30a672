"""The connector's half in the workers: what reaches the worker, and what it answers."""

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from sternpost_engine.operations import Begin, Built, Capture, Load, Operations, Span
from sternpost_fakes.vllm_modules import import_object

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def connector() -> ModuleType:
    """The module, which imports vLLM."""
    module: ModuleType = import_object("sternpost_engine.connector")
    return module


def worker_side(connector: ModuleType, modules: dict[str, Any]) -> Any:
    """Return the worker's half over a cache of one layer on the host."""
    torch = import_object("torch")
    config = SimpleNamespace(
        cache_config=SimpleNamespace(block_size=16),
        model_config=SimpleNamespace(dtype=torch.bfloat16),
        compilation_config=SimpleNamespace(static_forward_context=modules),
    )
    side = connector.WorkerSide(config)
    side.pages = {"layer": torch.empty(0)}
    return side


def attention(*, inside: bool = False, update: bool = True) -> SimpleNamespace:
    """Return a layer's attention, over a backend that writes its cache inside attention, or has no update."""
    backend = SimpleNamespace(forward_includes_kv_cache_update=inside, get_name=lambda: "ODD")
    impl = SimpleNamespace(do_kv_cache_update=print) if update else SimpleNamespace()
    return SimpleNamespace(num_kv_heads=1, head_size=8, head_size_v=8, attn_backend=backend, impl=impl)


@pytest.mark.parametrize(
    ("layer", "refusal"),
    [
        pytest.param(
            attention(), "layer layer has no rotary module of its own, and the model has 0", id="no-rotary"
        ),
        pytest.param(
            attention(inside=True),
            "layer layer: attention backend ODD has no cache update of its own",
            id="update-inside-attention",
        ),
        pytest.param(
            attention(update=False),
            "layer layer: attention backend ODD has no cache update of its own",
            id="no-update",
        ),
        pytest.param(
            SimpleNamespace(kv_sharing_target_layer_name="other"),
            "the model has no attention layer with a KV cache",
            id="shared-kv-alone",
        ),
    ],
)
def test_worker_that_cannot_be_made_says_why(
    connector: ModuleType, layer: SimpleNamespace, refusal: str
) -> None:
    """The report says so in words, and how much memory is free all the same."""
    side = worker_side(connector, {"layer": layer})

    report = side.prepare()

    assert refusal == report.refusal
    assert (True, True) == (report.host, report.free_bytes > 0)


class NotingWorker:
    """Notes the operations that reach it."""

    def __init__(self) -> None:
        self.started: list[Operations] = []
        self.shifted: list[Any] = []

    def shift(self, spans: Any, slot_mapping: Any) -> None:
        """Note them."""
        self.shifted.append((spans, slot_mapping))

    def start(self, operations: Operations) -> Any:
        """Note them."""
        self.started.append(operations)
        return SimpleNamespace(seconds=0.5, failed={})


@pytest.mark.parametrize(
    "operations",
    [
        pytest.param(Operations(drops=(1,)), id="drop"),
        pytest.param(Operations(begins=(Begin(1, (1, 2)),)), id="begin"),
        pytest.param(Operations(finished=(Built(1, 0),)), id="finished-mean"),
        pytest.param(Operations(loads=(Load("read", 1, Span((0,), 0, 0, 1)),)), id="load"),
        pytest.param(Operations(captures=(Capture(1, Span((0,), 0, 0, 1), final=True),)), id="capture"),
        pytest.param(Operations(shifts=(Span((0,), 0, 0, 1, 9),)), id="shift"),
    ],
)
def test_every_operation_reaches_the_worker(connector: ModuleType, operations: Operations) -> None:
    """One that is passed over would leave a tail without its tensors."""
    side = worker_side(connector, {})
    side._worker = NotingWorker()

    side.start(operations, {"layer": "slots"})

    assert [operations] == side._worker.started
    assert [(operations.shifts, {"layer": "slots"})] * bool(operations.shifts) == side._worker.shifted


def test_plain_step_never_reaches_the_worker(connector: ModuleType) -> None:
    """It costs nothing, and has nothing to report."""
    side = worker_side(connector, {})

    side.start(Operations(), {})
    side.end()

    assert (None, None) == (side.take_outcome(), side.take_stats())
