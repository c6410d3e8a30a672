"""The entry point of `vllm.endpoint_plugins`: `GET /sternpost/v1/info` on the engine's own port."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request
from vllm import __version__ as vllm_version

from sternpost_core import __version__
from sternpost_core.hint import HINT_VERSION
from sternpost_engine.settings import EngineSettings, parse_settings
from sternpost_engine.support import CONNECTOR_NAME, Support, check_support

INFO_PATH: Final = "/sternpost/v1/info"
"""What the gateway asks to learn whether this engine takes hints."""


class SternpostEndpoint:
    """Serves what the engine can do; made by vLLM where `VLLM_PLUGINS` names `sternpost`."""

    name = "sternpost"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Add the route."""
        router = APIRouter()

        @router.get(INFO_PATH)
        async def info(request: Request) -> dict[str, Any]:
            described: dict[str, Any] = request.app.state.sternpost_info
            return described

        app.include_router(router)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Describe the engine once: its configuration does not change while it runs."""
        state.sternpost_info = describe(engine_client.vllm_config)


def describe(vllm_config: Any) -> dict[str, Any]:
    """Return what `GET /sternpost/v1/info` answers."""
    transfer = vllm_config.kv_transfer_config
    connected = transfer is not None and transfer.kv_connector == CONNECTOR_NAME
    settings = parse_settings(transfer.kv_connector_extra_config) if connected else EngineSettings()
    missing = Support(f"--kv-transfer-config does not name {CONNECTOR_NAME}")
    support = check_support(vllm_config, vllm_version) if connected else missing
    return {
        "v": HINT_VERSION,
        "version": __version__,
        "vllm": vllm_version,
        "engine": vllm_config.instance_id,
        "supported": support.supported,
        "reason": support.reason,
        "block_size": vllm_config.cache_config.block_size,
        "tail_tokens_min": settings.tail_tokens_min,
        "tail_tokens_max": settings.tail_tokens_max,
        "tail_share_min": settings.tail_share_min,
    }
