"""The models of all engines together, where engines serve different ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from sternpost_gateway.engine_api import ControlFailed, EngineApi
from sternpost_gateway.errors import Answer, NoEngine
from sternpost_gateway.fleet import Engine, Fleet


class ModelList:
    """Asks one engine of each kind for what it serves."""

    def __init__(self, api: EngineApi, fleet: Fleet) -> None:
        self._api = api
        self._fleet = fleet

    async def answer(self) -> Answer:
        """
        Return the models of all engines as one answer; of engines that do not answer, what others serve, too.

        Raises:
            NoEngine: none has answered.
        """
        kinds: dict[frozenset[str], Engine] = {}
        for view in self._fleet.ready_views():
            kinds.setdefault(view.info.models, view.engine)
        lists = await asyncio.gather(*map(self._ask, kinds.values()))
        if all(one is None for one in lists):
            raise NoEngine("no engine has said which models it serves")
        models: dict[str, Mapping[str, Any]] = {}
        for one in lists:
            for model in one or ():
                models.setdefault(str(model.get("id")), model)
        body = json.dumps({"object": "list", "data": list(models.values())}).encode()
        headers = ((b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()))
        return Answer(200, headers, body, "2xx")

    async def _ask(self, engine: Engine) -> tuple[Mapping[str, Any], ...] | None:
        try:
            return await self._api.model_objects(engine)
        except ControlFailed:
            return None
