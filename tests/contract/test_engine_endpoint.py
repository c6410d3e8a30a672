"""`GET /sternpost/v1/info` on the engine's own port: what a gateway learns of an engine."""

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
        scheduler_config=SimpleNamespace(scheduler_cls=scheduler),
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


async def test_route_answers_with_the_description(endpoint: ModuleType) -> None:
    """As JSON, with the settings that are in force."""
    from fastapi import FastAPI

    plugin, app = endpoint.SternpostEndpoint(), FastAPI()
    plugin.attach_router(app)
    client = SimpleNamespace(vllm_config=engine(tail_tokens_min=128, tail_share_min=0.1))
    await plugin.init_state(client, app.state, None)

    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as http:
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


def test_endpoint_is_for_engines_that_generate(endpoint: ModuleType) -> None:
    """vLLM asks these before it makes the routes."""
    assert ("sternpost", ("generate",)) == (
        endpoint.SternpostEndpoint.name,
        endpoint.SternpostEndpoint.required_tasks,
    )
