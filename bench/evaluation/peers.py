"""The routers that are compared with, each pinned, in an environment of its own, and why others are not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import yaml

from bench.gateway.arms import LITELLM, LITELLM_REQUIREMENT
from bench.gateway.ports import free_ports
from bench.routing.routers import HOST, Router, install_peers, peer_routers

ENVIRONMENTS: Final = Path.home() / ".cache" / "sternpost" / "peers"

NOT_COMPARED: Final = {
    "lmcache": "tried in two ways: with its requirements its wheel (0.5.6) cannot stand beside the CPU build "
    "of vLLM, for cupy-cuda13x, numpy<=2.2.6 and prometheus-client<=0.24.1 exclude what that needs; without "
    "them its connector imports, but its copies (`cuda_ops`) are linked against libtorch_cuda, which no CPU "
    "build of torch has. What it keeps are prefixes, which vLLM's own cache holds here already",
}
"""What was looked at and is not compared, each with the reason."""


def available(model: str, folder: Path) -> tuple[list[Router], dict[str, str]]:
    """Return the routers that can be run, and why the others cannot; `folder` takes their settings."""
    routers, missing = peer_routers(ENVIRONMENTS / "routing")
    found = [_with_metrics_port(router) for router in routers]
    environment = ENVIRONMENTS / "proxy"
    reason = install_peers(environment, (LITELLM_REQUIREMENT,))
    if (environment / "bin" / LITELLM).exists():
        found.append(_litellm(environment / "bin" / LITELLM, model, folder))
    else:
        missing[LITELLM] = reason or "it has no command"
    return found, {**missing, **NOT_COMPARED}


def litellm_settings(model: str, engines: Sequence[str]) -> dict[str, object]:
    """Return LiteLLM's settings for one model at several engines; its own choice of strategy is kept."""
    deployments = [
        {
            "model_name": model,
            "litellm_params": {
                "model": f"hosted_vllm/{model}",
                "api_base": f"{engine}/v1",
                "api_key": "none",
            },
        }
        for engine in engines
    ]
    return {
        "model_list": deployments,
        "litellm_settings": {"num_retries": 0, "telemetry": False},
        # It listens on this machine alone, and begins without a key only when told so.
        "general_settings": {"dangerously_permit_weak_or_unset_master_key": True},
    }


def _with_metrics_port(router: Router) -> Router:
    def command(port: int, engines: Sequence[str]) -> list[str]:
        # Two of them at once would want the same port for their metrics.
        (metrics,) = free_ports(1)
        return [*router.command(port, engines), "--prometheus-port", str(metrics)]

    return Router(router.name, command)


def _litellm(binary: Path, model: str, folder: Path) -> Router:
    def command(port: int, engines: Sequence[str]) -> list[str]:
        path = folder / "litellm.yaml"
        path.write_text(yaml.safe_dump(litellm_settings(model, engines)), encoding="utf-8")
        return [
            # With its own table of prices it asks nobody for a newer one at the start.
            *("env", "LITELLM_LOCAL_MODEL_COST_MAP=True", "LITELLM_LOG=ERROR"),
            *(str(binary), "--config", str(path), "--host", HOST, "--port", str(port), "--num_workers", "1"),
        ]

    return Router(LITELLM, command)
