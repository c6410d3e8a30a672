"""The gateways of a cluster: where they are, and which versions of prefixes and tails they have seen."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from sternpost_core.errors import SternpostError
from sternpost_core.policy_status import SegmentVersion
from sternpost_operator.gateways import GatewayProbe
from sternpost_operator.kube import Api
from sternpost_operator.pool_decide import pod_addresses
from sternpost_operator.resources import PODS, POLICIES, Key
from sternpost_operator.segments import merge_seen
from sternpost_operator.work_queue import WorkQueue

logger = logging.getLogger(__name__)

ASK_SECONDS: Final = 30.0
"""Between two questions to all gateways: versions are names for people, and may be late."""

GATEWAYS_MAX: Final = 1000
"""Gateways that are asked, the first ones."""


class Fleet:
    """Asks all gateways twice a minute, and announces the policies that they have seen something new of."""

    def __init__(
        self,
        api: Api,
        probe: GatewayProbe,
        queue: WorkQueue,
        labels: str,
        port: int,
        scheme: str = "http",
    ) -> None:
        self._api = api
        self._probe = probe
        self._queue = queue
        self._labels = labels
        self._port = port
        self._scheme = scheme
        self._seen: dict[str, tuple[SegmentVersion, ...]] = {}

    def versions(self, policy: str) -> tuple[SegmentVersion, ...]:
        """Return the versions that gateways have of a policy by its full name."""
        return self._seen.get(policy, ())

    async def addresses(self) -> dict[str, str]:
        """
        Return the base URLs of the gateways that are ready, by the pods' names.

        Raises:
            ApiFailed: the API server did not say.
        """
        if not self._labels:
            return {}
        pods = await self._api.list_all(PODS, labels=self._labels)
        return pod_addresses(pods, self._port, GATEWAYS_MAX, self._scheme)

    async def ask(self) -> None:
        """
        Ask all gateways once.

        Raises:
            ApiFailed: the API server did not say where they are.
        """
        seen = merge_seen(await self._probe.versions(await self.addresses()))
        changed = [policy for policy, versions in seen.items() if versions != self._seen.get(policy)]
        self._seen = seen
        for policy in changed:
            namespace, _, name = policy.partition("/")
            self._queue.add(Key(POLICIES.kind, namespace, name))

    async def run(self) -> None:
        """Ask again and again, until it is cancelled."""
        while True:
            try:
                await self.ask()
            except SternpostError as error:
                logger.warning("gateways could not be asked for versions: %s", error)
            await asyncio.sleep(ASK_SECONDS)
