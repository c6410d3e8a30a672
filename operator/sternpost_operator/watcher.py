"""
Keeps the store up with the cluster: by watches, and by full lists, since a watch can miss that one went.

Both only announce keys. What is done about an object depends on how things are, never on what has happened.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from sternpost_core.clock import Clock
from sternpost_core.errors import SternpostError
from sternpost_operator.admission import edition_of
from sternpost_operator.dependents import dependents, policy_keys, pool_keys
from sternpost_operator.kube import Api, Forbidden, NotFound
from sternpost_operator.metrics import OperatorMetrics
from sternpost_operator.resources import (
    BUDGETS,
    BUDGETS_BEFORE_1_21,
    MANAGED_BY,
    MANAGED_LABEL,
    OWN,
    POLICIES,
    RENDERED,
    Key,
    Object,
    Resource,
    key_of,
)
from sternpost_operator.store import Store
from sternpost_operator.work_queue import WorkQueue

logger = logging.getLogger(__name__)

MANAGED: Final = f"{MANAGED_LABEL}={MANAGED_BY}"
"""The selector of what the operator renders."""

LIST_SECONDS: Final = 60.0
LIST_RETRY_SECONDS: Final = 5.0
SETTLE_SECONDS: Final = 1.0
"""How long other policies wait after one has changed, so that many changes are compared once."""

GONE: Final = "DELETED"
"""How a watch says that an object is gone."""


class Watcher:
    """Takes over what watches and lists say; `listed` is set when every kind has been listed once."""

    def __init__(
        self,
        api: Api,
        store: Store,
        queue: WorkQueue,
        clock: Clock,
        metrics: OperatorMetrics,
        budgets: Resource,
        listed: asyncio.Event,
    ) -> None:
        self._api = api
        self._store = store
        self._queue = queue
        self._clock = clock
        self._metrics = metrics
        self._budgets = budgets
        self._listed_at = clock.monotonic()
        self._listed = listed
        # Asked for at each scrape: it has to grow while a list hangs, too.
        metrics.list_age_seconds.set_function(lambda: clock.monotonic() - self._listed_at)

    def saw(self, resource: Resource, kind_of_event: str | None, value: Object) -> None:
        """Take one event of a watch over."""
        key = key_of(value, resource.kind)
        before = self._store.get(key)
        if kind_of_event == GONE:
            self._store.drop(key)
        else:
            self._store.put(value, resource.kind)
        self._announce(key, before, value)

    async def list_everything(self) -> None:
        """
        List every kind, and announce what has come, changed or gone.

        Raises:
            ApiFailed: nothing of a kind is taken over unless all of it could be listed. What the operator may
                not list keeps it from no other kind.
        """
        kinds = [(resource, "") for resource in OWN]
        kinds += [(resource, MANAGED) for resource in (*RENDERED, self._budgets)]
        forbidden = [error for kind in kinds if (error := await self._list_if_allowed(*kind)) is not None]
        self._listed.set()
        if forbidden:
            raise forbidden[0]
        self._listed_at = self._clock.monotonic()

    async def complete(self) -> None:
        """Wait until every kind that may be listed has been, once."""
        await self._listed.wait()

    async def run(self) -> None:
        """List everything again and again, until it is cancelled."""
        while True:
            delay = LIST_SECONDS
            try:
                await self.list_everything()
            except SternpostError as error:
                logger.warning("what there is could not be listed: %s", error)
                delay = LIST_RETRY_SECONDS
            await asyncio.sleep(delay)

    async def _list_if_allowed(self, resource: Resource, labels: str) -> Forbidden | None:
        try:
            await self._list(resource, labels)
        except Forbidden as error:
            return error
        return None

    async def _list(self, resource: Resource, labels: str) -> None:
        mark = self._store.mark()
        values = await self._api.list_all(resource, labels=labels)
        before = {key_of(value, resource.kind): value for value in self._store.of_kind(resource.kind)}
        for key in self._store.replace(resource.kind, values, mark):
            self._announce(key, before.get(key), self._store.get(key) or before.get(key))

    def _announce(self, key: Key, before: Object | None, value: Object | None) -> None:
        if key.kind in {resource.kind for resource in OWN}:
            self._queue.add(key)
        if key.kind == POLICIES.kind and _is_other_edition(before, self._store.get(key)):
            # A policy that has come, changed or gone may have stood in another one's way.
            for other in policy_keys(self._store):
                self._queue.add(other, SETTLE_SECONDS)
            # Engines are given the texts that their policies name.
            for pool in pool_keys(key, before, self._store.get(key)):
                self._queue.add(pool, SETTLE_SECONDS)
        for dependent in dependents(self._store, key, value):
            self._queue.add(dependent)


async def find_budgets(api: Api) -> Resource:
    """
    Return the version of PodDisruptionBudget that the server has.

    Raises:
        ApiFailed: it does not say.
    """
    try:
        await api.list_all(BUDGETS, labels=MANAGED)
    except NotFound:
        return BUDGETS_BEFORE_1_21
    return BUDGETS


def _is_other_edition(before: Object | None, after: Object | None) -> bool:
    if before is None or after is None:
        return before is not after
    return edition_of(before) != edition_of(after)
