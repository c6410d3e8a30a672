"""What is compared: engines by themselves, this project's gateway with two policies, and other routers."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from bench.routing.routers import HOST, Router
from sternpost_gateway.bench.target import Target

NO_CACHE: Final = "vllm_no_cache"
PLAIN: Final = "vllm"
STERNPOST: Final = "sternpost"
ANY_ENGINE: Final = "sternpost_any_engine"

HOP: Final = "sternpost_plain_proxy"
"""The same gateway, told to pass everything through: plain vLLM behind the same hop."""

OWN: Final = (ANY_ENGINE, STERNPOST, HOP)

ONLY: Final[Mapping[str, frozenset[str]]] = {
    HOP: frozenset({"no_reuse", "short_chat"}),
    NO_CACHE: frozenset({"fixed_tail", "long_reasoning", "long_session", "multi_turn_qa"}),
}
"""The workloads of targets that are not asked all of them: those on which each of them says something."""

ANSWERS_OF_ONE_LENGTH: Final = {"ignore_eos": True}
"""Of all targets, so that latencies compare."""

MOVED: Final = ("Timestamp", "RequestId")
"""What the policies take out of the prefix: the clocks and ids of the agents' requests."""


def policy_of(layout: str, *, suffix_cache: bool, kill_level: str = "None") -> dict[str, Any]:
    """Return the policy of one of this project's targets; tenancy is shared, as peers know no tenants."""
    spec: dict[str, Any] = {
        "match": {},
        "poolRef": {"name": "local"},
        "tenancy": {"isolation": "Shared"},
        "prompt": {
            "layout": layout,
            "canonicalize": "Pin",
            "volatile": [
                {"name": detector.lower(), "detect": detector, "action": "Relocate"} for detector in MOVED
            ],
            "tail": {"source": "LastSystemMessage", "minTokens": 256},
        },
        "killLevel": kill_level,
    }
    if suffix_cache:
        spec["suffixCache"] = {
            "mode": "Rotate",
            "recompute": {"head": 0, "last": 32, "match": 64},
            "correction": "None",
        }
        # Both engines are to hold the tail before anything is measured.
        spec["warm"] = True
    return {
        "apiVersion": "sternpost.dev/v1alpha1",
        "kind": "CachePolicy",
        "metadata": {"name": "evaluation", "namespace": "local"},
        "spec": spec,
    }


POLICIES: Final[Mapping[str, Mapping[str, Any]]] = {
    ANY_ENGINE: policy_of("TailFirst", suffix_cache=False),
    STERNPOST: policy_of("FixedTail", suffix_cache=True),
    HOP: policy_of("FixedTail", suffix_cache=True, kill_level="PlainProxy"),
}


def own_routers(folder: Path) -> list[Router]:
    """Return this project's gateway with each policy; `folder` takes policies and states."""
    return [_own(name, folder / name) for name in OWN]


def _own(name: str, folder: Path) -> Router:
    def command(port: int, engines: Sequence[str]) -> list[str]:
        policies = folder / "policies"
        policies.mkdir(parents=True, exist_ok=True)
        (policies / "policy.yaml").write_text(yaml.safe_dump(POLICIES[name]), encoding="utf-8")
        flags = ["--policies", str(policies), "--state", str(folder / "state")]
        flags += ["--host", HOST, "--port", str(port), "--drain-delay-seconds", "0", "--drain-seconds", "5"]
        flags += [word for engine in engines for word in ("--engine", engine)]
        return [sys.executable, "-m", "sternpost_core", "gateway", *flags]

    return Router(name, command)


def targets_of(routers: Mapping[str, str], engines: Sequence[str], model: str) -> list[Target]:
    """Return all targets; `routers` are the origins of those that run, by name."""

    def target(name: str, origins: Sequence[str], *, salted: bool = False) -> Target:
        return Target(
            name=name,
            origins=tuple(origins),
            model=model,
            extra=ANSWERS_OF_ONE_LENGTH,
            salted=salted,
            engines=tuple(engines),
        )

    straight = [target(NO_CACHE, engines, salted=True), target(PLAIN, engines)]
    return [*straight, *(target(name, [origin]) for name, origin in routers.items())]
