"""What gateways say: their kill levels on `/metrics`, and the versions they have seen."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import httpx
from prometheus_client.parser import text_string_to_metric_families

from sternpost_core.gateway_tls import GatewayCertificate
from sternpost_core.policy_status import SegmentVersion, segment_version
from sternpost_operator.probes import probe_client
from sternpost_operator.segments import SEEN_MAX, SEGMENTS, Seen

TEMPLATES_PATH: Final = "/sternpost/v1/templates"
KILL_LEVEL: Final = "sternpost_gateway_kill_level"
CONFIG_AGE: Final = "sternpost_gateway_config_age_seconds"
WANTED: Final = (KILL_LEVEL, CONFIG_AGE)
PAGE_BYTES_MAX: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class GatewayReport:
    """
    What one gateway says; `fault` is why it says nothing.

    `levels` are kill levels, 0 to 5, by a policy's full name; the empty name is for all others.
    """

    levels: Mapping[str, int] = field(default_factory=dict)
    config_age: float | None = None
    fault: str = ""


class GatewayProbe(Protocol):
    """Asks gateways; a question that fails is a report, too."""

    async def ask(self, addresses: Mapping[str, str]) -> dict[str, GatewayReport]:
        """Return what each gateway says, by the names of `addresses`, whose values are base URLs."""

    async def versions(self, addresses: Mapping[str, str]) -> list[Seen]:
        """Return the versions that each gateway has seen; nothing from one that does not say."""


class HttpGatewayProbe:
    """
    Asks over HTTP, several gateways at once; `client` decides about the network.

    `certificate` is what the client meets gateways by where they serve TLS.
    """

    def __init__(self, client: httpx.AsyncClient, certificate: GatewayCertificate | None = None) -> None:
        self._client = client
        self._certificate = certificate

    async def ask(self, addresses: Mapping[str, str]) -> dict[str, GatewayReport]:
        """Return what each gateway says."""
        self._renew()
        reports = await asyncio.gather(*(self._ask_one(url) for url in addresses.values()))
        return dict(zip(addresses, reports, strict=True))

    async def versions(self, addresses: Mapping[str, str]) -> list[Seen]:
        """Return the versions that each gateway has seen."""
        self._renew()
        return await asyncio.gather(*(self._ask_versions(url) for url in addresses.values()))

    def _renew(self) -> None:
        if self._certificate is not None:
            self._certificate.renew()

    async def _ask_versions(self, url: str) -> Seen:
        try:
            response = await self._client.get(url + TEMPLATES_PATH)
            if not response.is_success or len(response.content) > PAGE_BYTES_MAX:
                return {}
            return read_versions(response.json())
        except (httpx.HTTPError, ValueError):
            # Versions are names for people; a gateway that does not say them is asked again soon.
            return {}

    async def _ask_one(self, url: str) -> GatewayReport:
        try:
            response = await self._client.get(f"{url}/metrics")
        except httpx.HTTPError as error:
            return GatewayReport(fault=f"no answer: {type(error).__name__}")
        if not response.is_success or len(response.content) > PAGE_BYTES_MAX:
            return GatewayReport(fault=f"an answer with status {response.status_code}")
        return read_report(response.text)


def read_versions(answer: object) -> Seen:
    """Return the newest versions of each policy; what is not understood is passed over."""
    policies = answer.get("policies") if isinstance(answer, Mapping) else None
    seen: dict[str, tuple[SegmentVersion, ...]] = {}
    for policy in policies if isinstance(policies, list) else []:
        if isinstance(policy, Mapping) and isinstance(policy.get("policy"), str):
            seen[policy["policy"]] = tuple(_versions(policy.get("versions")))
    return seen


def _versions(found: object) -> Iterator[SegmentVersion]:
    for segment in SEGMENTS:
        entries = found.get(segment) if isinstance(found, Mapping) else None
        for entry in entries[:SEEN_MAX] if isinstance(entries, list) else []:
            version = segment_version({**entry, "segment": segment}) if isinstance(entry, Mapping) else None
            if version is not None:
                yield version


def read_report(page: str) -> GatewayReport:
    """Return what a page of metrics says."""
    # Only the lines that are read are parsed: a gateway's histograms are most of its page.
    lines = [line for line in page.splitlines() if line.startswith(WANTED)]
    try:
        families = list(text_string_to_metric_families("\n".join(lines) + "\n"))
    except ValueError:
        return GatewayReport(fault="metrics that cannot be understood")
    samples = [sample for family in families for sample in family.samples]
    levels: dict[str, int] = {}
    for one in samples:
        if one.name == KILL_LEVEL:
            # Of several workers behind one port the one counts where least is switched off.
            policy = one.labels.get("policy", "")
            levels[policy] = min(int(one.value), levels.get(policy, int(one.value)))
    ages = [sample.value for sample in samples if sample.name == CONFIG_AGE]
    return GatewayReport(levels, max(ages, default=None)) if levels else GatewayReport(fault="no kill level")


def gateway_client(certificate: GatewayCertificate | None = None) -> httpx.AsyncClient:
    """Return the client for gateways, which meets those that serve TLS by their certificate."""
    return probe_client(True if certificate is None else certificate.context)
