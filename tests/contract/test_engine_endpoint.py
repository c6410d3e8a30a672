"""The routes on the engine's own port: what a gateway learns of an engine, and an operator of its tails."""

import asyncio
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import pytest

from sternpost_core.hint import HINT_VERSION
from sternpost_engine.support import SCHEDULER
from sternpost_fakes.vllm_modules import import_object

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def endpoint() -> ModuleType:
    """The module, which imports vLLM."""
    module: ModuleType = import_object("sternpost_engine.endpoint")
    return module


def engine(
    *, connector: str | None = "SternpostConnector", scheduler: str = SCHEDULER, **extra: Any
) -> SimpleNamespace:
    """Return the configuration of an engine; `extra` are the plugin's settings."""
    return SimpleNamespace(
        kv_transfer_config=None
        if connector is None
        else SimpleNamespace(kv_connector=connector, kv_connector_extra_config=extra),
        instance_id="e1",
        scheduler_config=SimpleNamespace(scheduler_cls=scheduler, enable_chunked_prefill=True),
        parallel_config=SimpleNamespace(pipeline_parallel_size=1),
        model_config=SimpleNamespace(
            use_mla=False, is_encoder_decoder=False, uses_mrope=False, runner_type="generate"
        ),
        cache_config=SimpleNamespace(cache_dtype="auto", block_size=16),
        speculative_config=None,
        use_v2_model_runner=False,
    )


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        pytest.param(engine(), None, id="supported"),
        pytest.param(
            engine(connector=None), "--kv-transfer-config does not name SternpostConnector", id="plain-vllm"
        ),
        pytest.param(
            engine(connector="Other"),
            "--kv-transfer-config does not name SternpostConnector",
            id="other-connector",
        ),
        pytest.param(engine(scheduler="Other"), f"--scheduler-cls is not {SCHEDULER}", id="other-scheduler"),
    ],
)
def test_engine_says_whether_it_takes_hints(
    endpoint: ModuleType, config: SimpleNamespace, reason: str | None
) -> None:
    """And if not, why."""
    described = endpoint.describe(config)

    assert (reason is None, reason) == (described["supported"], described["reason"])


POOL = {
    "pool_bytes": 5,
    "pool_budget_bytes": 9,
    "buckets": [],
    "tails": {"building": 0, "live": 1, "retired": 0},
    "epochs": [3, 7],
    "reason": None,
    "modes": ["rotate", "anchor"],
}


class Core:
    """The scheduler's process, as vLLM's client reaches it; silent, gone, or ending, when told so."""

    def __init__(self, pool: dict[str, Any] | None = None) -> None:
        self.pool = POOL if pool is None else pool
        self.silent = False
        self.gone = False
        self.ending = False

    async def call_utility_all_async(self, method: str) -> Sequence[dict[str, Any]]:
        """Answer a call, once per engine core."""
        if self.gone:
            raise import_object("vllm.v1.engine.exceptions:EngineDeadError")
        if self.ending:
            raise Exception("Server shutting down")  # as vLLM's client does
        if self.silent:
            await asyncio.Event().wait()
        answers: dict[str, dict[str, Any]] = {
            "sternpost_pool": self.pool,
            "sternpost_tails": {"tails": [{"key": "07", "tokens": 300}], "left_off": 0},
        }
        return [answers[method]]


async def serve(endpoint: ModuleType, core: Core, config: SimpleNamespace) -> httpx.AsyncClient:
    """Return a client of the routes, as vLLM serves them."""
    from fastapi import FastAPI

    plugin, app = endpoint.SternpostEndpoint(), FastAPI()
    plugin.attach_router(app)
    await plugin.init_state(SimpleNamespace(vllm_config=config, engine_core=core), app.state, None)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://engine")


async def test_route_answers_with_the_description(endpoint: ModuleType) -> None:
    """As JSON, with the settings that are in force, versions, capabilities, and the store as it stands."""
    config = engine(tail_tokens_min=128, tail_share_min=0.1)
    async with await serve(endpoint, Core(), config) as http:
        response = await http.get(endpoint.INFO_PATH)

    answer = response.json()
    assert (200, HINT_VERSION, "e1", 16) == (
        response.status_code,
        answer["v"],
        answer["engine"],
        answer["block_size"],
    )
    assert (128, 4096, 0.1) == tuple(
        answer[key] for key in ("tail_tokens_min", "tail_tokens_max", "tail_share_min")
    )
    assert {"sternpost", "vllm", "torch"} == answer["versions"].keys()
    assert {
        "modes": ["rotate", "anchor"],
        "corrections": ["none", "calibrated"],
        "lora": False,
        "tails": True,
    } == answer["capabilities"]
    assert ([POOL], [3, 7], 7) == (answer["pools"], answer["epochs"], answer["epoch"])


async def test_refusal_after_the_start_is_told(endpoint: ModuleType) -> None:
    """The workers try the model's rotation, and a splice, when it is loaded."""
    async with await serve(endpoint, Core({**POOL, "reason": "layer 3 is odd"}), engine()) as http:
        answer = (await http.get(endpoint.INFO_PATH)).json()

    assert (False, "layer 3 is odd") == (answer["supported"], answer["reason"])


async def test_refusal_of_the_configuration_comes_first(endpoint: ModuleType) -> None:
    """It is the reason that an operator can do something about."""
    config = engine(scheduler="Other")
    async with await serve(endpoint, Core({**POOL, "reason": "another"}), config) as http:
        answer = (await http.get(endpoint.INFO_PATH)).json()

    assert f"--scheduler-cls is not {SCHEDULER}" == answer["reason"]


@pytest.mark.parametrize("fault", ["silent", "gone", "ending"])
async def test_info_does_not_wait_for_a_busy_engine(
    endpoint: ModuleType, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """It goes on with what the engine said last, for a gateway must not take it for lost."""
    monkeypatch.setattr(endpoint, "INFO_SECONDS_MAX", 0.01)
    core = Core()
    async with await serve(endpoint, core, engine()) as http:
        first = (await http.get(endpoint.INFO_PATH)).json()
        setattr(core, fault, True)
        second = (await http.get(endpoint.INFO_PATH)).json()

    assert first == second


async def test_tails_are_listed(endpoint: ModuleType) -> None:
    """One list per engine core."""
    async with await serve(endpoint, Core(), engine()) as http:
        response = await http.get(endpoint.TAILS_PATH)

    expected = {"v": HINT_VERSION, "engines": [{"tails": [{"key": "07", "tokens": 300}], "left_off": 0}]}
    assert (200, expected) == (response.status_code, response.json())


@pytest.mark.parametrize("fault", ["gone", "ending"])
async def test_tails_of_a_lost_engine_are_an_error_in_its_own_shape(endpoint: ModuleType, fault: str) -> None:
    """Whoever asks learns why there is no list."""
    core = Core()
    setattr(core, fault, True)
    async with await serve(endpoint, core, engine()) as http:
        response = await http.get(endpoint.TAILS_PATH)

    assert (503, 503) == (response.status_code, response.json()["error"]["code"])


def test_endpoint_is_for_engines_that_generate(endpoint: ModuleType) -> None:
    """vLLM asks these before it makes the routes."""
    assert ("sternpost", ("generate",)) == (
        endpoint.SternpostEndpoint.name,
        endpoint.SternpostEndpoint.required_tasks,
    )
