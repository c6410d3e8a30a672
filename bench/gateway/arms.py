"""What is compared: this project's gateway in several settings, and other gateways, each as a command."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.gateway.bodies import POLICY, UNMATCHED_POLICY
from bench.gateway.ports import free_ports
from bench.gateway.upstream import MODEL
from bench.routing.routers import HOST, Router, install_peers, peer_routers

LITELLM_REQUIREMENT: Final = "litellm[proxy]==1.108.7"
"""Installed, pinned, into an environment of its own."""

OURS: Final = "sternpost"
UNMATCHED: Final = "sternpost_unmatched"
SILENT: Final = "sternpost_silent"
"""Without metrics, as `bench.gateway.silent` runs it; all else is as in `sternpost`."""

LITELLM: Final = "litellm"
SMG: Final = "smg"

LITELLM_CONFIG: Final = """\
model_list:
  - model_name: {model}
    litellm_params: {{model: openai/{model}, api_base: "{engine}/v1", api_key: none}}
general_settings: {{dangerously_permit_weak_or_unset_master_key: true}}
litellm_settings: {{telemetry: false, num_retries: 0}}
"""

Command = Callable[[int, str], list[str]]
"""Returns the command for a port and the engine's URL."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One gateway: its name, and its command."""

    name: str
    command: Command


@dataclass(frozen=True, slots=True)
class Environments:
    """The folders of the virtual environments that other gateways are installed into."""

    routers: Path
    litellm: Path


def own_arms(folder: Path) -> list[Arm]:
    """Return this project's gateway: with a policy that matches, one that does not, and no metrics."""
    return [
        _own(OURS, folder, POLICY),
        _own(UNMATCHED, folder, UNMATCHED_POLICY),
        _own(SILENT, folder, POLICY, ("bench.gateway.silent",)),
    ]


def peer_arms(folder: Path, environments: Environments) -> tuple[list[Arm], dict[str, str]]:
    """Return the other gateways that can be run, and why each of the others cannot."""
    routers, missing = peer_routers(environments.routers)
    arms = [_router(router) for router in routers]
    reason = install_peers(environments.litellm, [LITELLM_REQUIREMENT])
    binary = environments.litellm / "bin" / "litellm"
    if binary.exists():
        arms.append(_litellm(binary, folder))
    else:
        missing = {**missing, LITELLM: reason or "litellm has no command"}
    return arms, missing


def pinned(command: Sequence[str], core: int | None) -> list[str]:
    """Return a command that runs on one core only, so that it has one core's worth whatever it does."""
    return list(command) if core is None else ["taskset", "--cpu-list", str(core), *command]


def _own(name: str, folder: Path, policy: str, module: Sequence[str] = ("sternpost_core", "gateway")) -> Arm:
    policies = folder / name
    policies.mkdir()
    (policies / "policy.yaml").write_text(policy, encoding="utf-8")

    def command(port: int, engine: str) -> list[str]:
        return [
            *(sys.executable, "-m", *module, "--policies", str(policies)),
            *("--engine", engine, "--port", str(port)),
            *("--drain-delay-seconds", "0", "--drain-seconds", "1"),
        ]

    return Arm(name, command)


def _router(router: Router) -> Arm:
    def command(port: int, engine: str) -> list[str]:
        # Two of them at once would want the same port for their metrics.
        (metrics,) = free_ports(1)
        return [*router.command(port, [engine]), "--prometheus-port", str(metrics)]

    return Arm(router.name, command)


def _litellm(binary: Path, folder: Path) -> Arm:
    def command(port: int, engine: str) -> list[str]:
        config = folder / f"litellm-{port}.yaml"
        config.write_text(LITELLM_CONFIG.format(model=MODEL, engine=engine), encoding="utf-8")
        # With its own table of prices it asks nobody for a newer one at the start.
        return [
            *("env", "LITELLM_LOCAL_MODEL_COST_MAP=True", "LITELLM_LOG=ERROR"),
            *(str(binary), "--config", str(config), "--host", HOST, "--port", str(port)),
            *("--num_workers", "1"),
        ]

    return Arm(LITELLM, command)
