"""
The entry point of `vllm.endpoint_plugins`: the routes below `/sternpost/v1` on the engine's own port.

`info` says what the engine can do and how its suffix store stands, `tails` lists what the store holds.
What the scheduler's process knows is asked for over vLLM's own calls to it; while the engine is busy with a
long step it answers late, and `info` goes on with what it said last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import torch
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse
from vllm import __version__ as vllm_version
from vllm.logger import init_logger

from sternpost_core import __version__
from sternpost_core.hint import HINT_VERSION, Correction, Mode
from sternpost_engine.core_calls import POOL_CALL, TAILS_CALL
from sternpost_engine.settings import EngineSettings, parse_settings
from sternpost_engine.support import CONNECTOR_NAME, Support, check_support

logger = init_logger("vllm.sternpost")

INFO_PATH: Final = "/sternpost/v1/info"
"""What the gateway asks to learn whether this engine takes hints."""

TAILS_PATH: Final = "/sternpost/v1/tails"
"""What an operator asks to see which tails are held."""

INFO_SECONDS_MAX: Final = 0.5
"""So long `info` waits for the scheduler: a gateway that asks must not take a busy engine for a lost one."""

TAILS_SECONDS_MAX: Final = 10.0
"""So long `tails` waits: whoever looks at tails wants the real ones."""

Ask = Callable[[str], Awaitable[Sequence[Mapping[str, Any]]]]
"""Calls a method of every engine core by its name; returns one answer per core."""


class StoreSight:
    """Asks the scheduler's process, and remembers what it said of the store as a whole."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._pools: Sequence[Mapping[str, Any]] = ()

    async def pools(self) -> Sequence[Mapping[str, Any]]:
        """Return each engine core's pool, as it was when the core last answered in time."""
        answered = await self._in_time(POOL_CALL, INFO_SECONDS_MAX)
        if answered is not None:
            self._pools = answered
        return self._pools

    async def tails(self) -> Sequence[Mapping[str, Any]] | None:
        """Return each engine core's tails, or None when the engine does not answer in time."""
        return await self._in_time(TAILS_CALL, TAILS_SECONDS_MAX)

    async def _in_time(self, method: str, seconds: float) -> Sequence[Mapping[str, Any]] | None:
        try:
            return await asyncio.wait_for(self._ask(method), seconds)
        except Exception as error:  # noqa: BLE001
            # The core is busy or dead, or refuses, as one does that is told to end: vLLM passes on whatever a
            # core raises as a plain exception.
            logger.info("the engine core does not answer %s: %s", method, str(error) or type(error).__name__)
            return None


class SternpostEndpoint:
    """Serves what the engine can do and holds; made by vLLM where `VLLM_PLUGINS` names `sternpost`."""

    name = "sternpost"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Add the routes."""
        router = APIRouter()

        @router.get(INFO_PATH)
        async def info(request: Request) -> dict[str, Any]:
            state = request.app.state
            return with_pools(state.sternpost_info, await state.sternpost_sight.pools())

        @router.get(TAILS_PATH)
        async def tails(request: Request) -> JSONResponse:
            answers = await request.app.state.sternpost_sight.tails()
            if answers is None:
                message = f"the engine did not answer within {TAILS_SECONDS_MAX:g} s"
                error = {"message": message, "type": "ServiceUnavailableError", "code": 503}
                return JSONResponse({"error": error}, status_code=503)
            return JSONResponse({"v": HINT_VERSION, "engines": list(answers)})

        app.include_router(router)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Describe once what does not change while the engine runs, and learn whom to ask for the rest."""
        state.sternpost_info = describe(engine_client.vllm_config)
        state.sternpost_sight = StoreSight(engine_client.engine_core.call_utility_all_async)


def describe(vllm_config: Any) -> dict[str, Any]:
    """Return the part of `GET /sternpost/v1/info` that follows from the engine's configuration."""
    transfer = vllm_config.kv_transfer_config
    connected = transfer is not None and transfer.kv_connector == CONNECTOR_NAME
    settings = parse_settings(transfer.kv_connector_extra_config) if connected else EngineSettings()
    missing = Support(f"--kv-transfer-config does not name {CONNECTOR_NAME}")
    tried = settings.v2_model_runner
    checked = check_support(vllm_config, vllm_version, v2_model_runner=tried)
    support = checked if connected else missing
    return {
        "v": HINT_VERSION,
        "version": __version__,
        "vllm": vllm_version,
        "versions": {"sternpost": __version__, "vllm": vllm_version, "torch": str(torch.__version__)},
        "capabilities": {
            "modes": [],
            "corrections": [correction.value for correction in Correction],
            "lora": getattr(vllm_config, "lora_config", None) is not None,
            "tails": True,
        },
        "engine": vllm_config.instance_id,
        "supported": support.supported,
        "reason": support.reason,
        "block_size": vllm_config.cache_config.block_size,
        "tail_tokens_min": settings.tail_tokens_min,
        "tail_tokens_max": settings.tail_tokens_max,
        "tail_share_min": settings.tail_share_min,
    }


def with_pools(info: Mapping[str, Any], pools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Add what the engine cores say: pools, epochs, modes, and a refusal that came after the start."""
    refusal = next((pool["reason"] for pool in pools if pool.get("reason")), None)
    epochs = sorted({epoch for pool in pools for epoch in pool.get("epochs", ())})
    changed: dict[str, Any] = (
        {} if refusal is None or not info["supported"] else {"supported": False, "reason": refusal}
    )
    known = [set(pool.get("modes", ())) for pool in pools]
    modes = [mode.value for mode in Mode if known and all(mode.value in one for one in known)]
    changed["capabilities"] = {**info["capabilities"], "modes": modes}
    return {**info, **changed, "epochs": epochs, "epoch": max(epochs, default=0), "pools": list(pools)}
