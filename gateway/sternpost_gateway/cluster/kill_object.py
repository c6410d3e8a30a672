"""
The CacheKillSwitch that `sternpost kill` keeps: one for all policies, and one for each that is named.

A switch of its own leaves the policies as they are in whatever repository they are kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from sternpost_core.kill import CacheKillSwitch, KillLevel, kill_switch_to_mapping
from sternpost_gateway.cluster.errors import ClusterError
from sternpost_gateway.cluster.pods import pod_address
from sternpost_gateway.cluster.resources import PODS, SWITCHES, Key, key_of, version_of
from sternpost_gateway.kill_client import Wanted

if TYPE_CHECKING:
    from sternpost_gateway.cluster.api import KubernetesApi

SWITCH_NAME: Final = "sternpost-kill"
"""The name of the switch for all; those for single policies add the policy's own name to it."""

API_SECONDS: Final = 2.0
"""How long the API server may take; then the gateways are told directly."""


GATEWAYS: Final = replace(PODS, labels="app.kubernetes.io/name=sternpost,app.kubernetes.io/component=gateway")
"""The pods of the chart's gateways."""

GATEWAY_PORT: Final = 8080
GATEWAY_PORT_NAME: Final = "http"
"""Where a gateway listens, unless its container names another port so."""


@dataclass(frozen=True, slots=True)
class Written:
    """What the API server said about the switch; `version` is its resource version, -1 if it is gone."""

    name: str
    ok: bool
    version: int
    detail: str


def switch_name(policy: str | None) -> str:
    """Return the name of the switch for a policy by its full name, or for all."""
    return f"{SWITCH_NAME}.{policy.replace('/', '.')}" if policy else SWITCH_NAME


async def gateway_urls(
    api: KubernetesApi, namespace: str | None, scheme: str = "http", seconds: float = API_SECONDS
) -> list[str]:
    """
    Return the base URLs of the gateways that run as pods, ready or not, in the order of their names.

    Raises:
        ClusterError: the API server could not be asked.
    """
    listing = await api.list(replace(GATEWAYS, namespace=namespace), cached=False, seconds=seconds)
    addresses = (
        pod_address(pod, GATEWAY_PORT_NAME, GATEWAY_PORT) for pod in sorted(listing.items, key=key_of)
    )
    return [f"{scheme}://{address}" for address in addresses if address is not None]


async def write_switch(api: KubernetesApi, wanted: Wanted, seconds: float = API_SECONDS) -> Written:
    """Have the switch say so; `NONE` removes it. A failure is in the result, since there are other ways."""
    name, level, policy = switch_name(wanted.policy), wanted.level, wanted.policy
    key = Key("", name)
    try:
        if level is KillLevel.NONE:
            existed = await api.delete(SWITCHES, key, seconds)
            return Written(name, True, -1, "removed" if existed else "there was none")
        switch = CacheKillSwitch(
            name=name,
            level=level,
            policies=(policy,) if policy else (),
            reason=wanted.reason,
            forced=wanted.forced,
        )
        item = await api.apply(SWITCHES, key, kill_switch_to_mapping(switch), seconds)
        return Written(name, True, version_of(item), f"says {level}")
    except ClusterError as error:
        return Written(name, False, -1, str(error))
