"""The gateway's own endpoints: health, readiness, metrics and the kill level."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from sternpost_core.clock import Clock
from sternpost_core.errors import BodyError, Fault, OperatingError, SternpostError
from sternpost_core.jsonspan import scan, value
from sternpost_core.kill import LEVEL_FORMS, REASON_LENGTH_MAX, KillLevel, level_named
from sternpost_core.template import to_mapping
from sternpost_gateway.chat_template import ChatTemplate
from sternpost_gateway.cold_gate import ColdGate
from sternpost_gateway.config import ConfigSource
from sternpost_gateway.errors import Forbidden, NotFound, TooLarge, answer_of
from sternpost_gateway.fleet import Fleet, View
from sternpost_gateway.kill_file import KillFile
from sternpost_gateway.kills import Kills
from sternpost_gateway.learning import PolicyLearning
from sternpost_gateway.metrics import Metrics
from sternpost_gateway.prompts import Prompts
from sternpost_gateway.shadow.verdicts import Verdicts
from sternpost_gateway.top.page import Series, series_of
from sternpost_gateway.trips import Trips
from sternpost_gateway.warmer import Warmer, may_warm

METRICS_PATH: Final = "/metrics"
KILL_PATH: Final = "/sternpost/v1/kill"
TEMPLATES_PATH: Final = "/sternpost/v1/templates"
WARM_PATH: Final = "/sternpost/v1/warm"
WARM_FIELDS: Final = ("policy", "engine")
ASKER_HEADER: Final = "x-sternpost-asker"
"""Names the client on whose account another worker asks; over a port it says nothing."""

KILL_FIELDS: Final = ("level", "policy", "reason", "force")
KILL_BYTES_MAX: Final = 65536
"""The largest body that sets a kill level."""


@dataclass(slots=True)
class Lifecycle:
    """Whether the gateway is shutting down: then it is not ready, and serves what it has."""

    draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Admin:
    """Answers people and probes; nothing here touches a request for an engine."""

    fleet: Fleet
    prompts: Prompts
    source: ConfigSource
    kills: Kills
    kill_file: KillFile | None
    trips: Trips
    verdicts: Verdicts
    gate: ColdGate
    warmer: Warmer
    metrics: Metrics
    registry: CollectorRegistry
    clock: Clock
    lifecycle: Lifecycle
    token: str | None

    def routes(self) -> list[Route]:
        """Return the routes of all endpoints."""
        return [
            Route("/healthz", self.healthz),
            Route("/readyz", self.readyz),
            Route(METRICS_PATH, self.metrics_page),
            Route(TEMPLATES_PATH, self.templates),
            Route(KILL_PATH, self.kill, methods=["GET", "POST"]),
            Route(WARM_PATH, self.warm, methods=["POST"]),
        ]

    async def healthz(self, request: Request) -> Response:
        """Say that the process runs."""
        return PlainTextResponse("ok")

    async def readyz(self, request: Request) -> Response:
        """Say whether requests can be served; `?verbose` says why, or why not."""
        ready = bool(self.fleet.ready_views()) and not self.lifecycle.draining
        status = 200 if ready else 503
        if "verbose" in request.query_params:
            return JSONResponse({"ready": ready, **self._details()}, status_code=status)
        return PlainTextResponse("ok" if ready else "not ready", status_code=status)

    async def metrics_page(self, request: Request) -> Response:
        """Return all metrics in the format that is asked for; only OpenMetrics has exemplars."""
        self.show_states()
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self.registry), headers={"content-type": content_type})

    def series(self) -> tuple[Series, ...]:
        """Return the gateway's own figures as they are now."""
        self.show_states()
        return series_of(self.registry.collect())

    def show_states(self) -> None:
        """Bring those gauges up to date that nothing sets when what they tell about changes."""
        self.metrics.config_age_seconds.set(self.config_age())
        self.metrics.config_faults.set(len(self.source.status.faults))
        self.metrics.kill_file_faults.set(self.kill_file is not None and self.kill_file.fault is not None)
        self.metrics.engines_tripped.set(len(self.trips.active()))
        self.metrics.show_gates(self.gate.limiters())
        self.metrics.show_pools(self.fleet.views())
        names = [policy.full_name for policy in self.source.config.policies.policies]
        self.metrics.show_demoted({name: self.verdicts.demoted(name) for name in names})

    async def templates(self, request: Request) -> Response:
        """Show what is learned about each policy's prompts: ids, places and counts, and never text."""
        known = self.prompts.learning.policies()
        models = [_chat_template(*item) for item in self.prompts.chat_templates.known()]
        policies = [_learned(name, one, self.prompts) for name, one in known]
        replays = {name: self.verdicts.shown(name) for name in self.verdicts.policies()}
        return JSONResponse({"policies": policies, "chatTemplates": models, "shadow": replays})

    async def kill(self, request: Request) -> Response:
        """Show or set the kill level."""
        try:
            self._check_token(request)
            if request.method == "POST":
                return await self._set_level(request)
            return JSONResponse(self._kill_state())
        except SternpostError as error:
            answer = answer_of(error)
            return Response(answer.body, answer.status, headers={"content-type": "application/json"})

    async def warm(self, request: Request) -> Response:
        """Begin to build the tails that were asked for last, on all ready engines or on one."""
        try:
            self._check_token(request)
            policy, url = read_warm(await small_body(request))
            return self._warm(policy, url)
        except SternpostError as error:
            answer = answer_of(error)
            return Response(answer.body, answer.status, headers={"content-type": "application/json"})

    def _warm(self, policy: str | None, url: str | None) -> Response:
        known = [item.full_name for item in self.source.config.policies.policies]
        ready = {view.engine.url: view.engine for view in self.fleet.ready_views()}
        faults = [
            Fault(name, repr(found), ", ".join(sorted(allowed)) or "null")
            for name, found, allowed in (("policy", policy, known), ("engine", url, list(ready)))
            if found is not None and found not in allowed
        ]
        if faults:
            raise BodyError("warm", faults)
        engines = list(ready.values()) if url is None else [ready[url]]
        tails = self.warmer.start(
            engines, lambda key: policy in (None, key.policy) and may_warm(self.kills.table, key)
        )
        return JSONResponse({"tails": tails, "engines": len(engines)}, status_code=202)

    def _check_token(self, request: Request) -> None:
        if self.token is None:
            raise NotFound("the admin interface needs --admin-token-file")
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(token.encode(), self.token.encode()):
            raise Forbidden("the admin token is missing or wrong")

    async def _set_level(self, request: Request) -> Response:
        order = read_kill(await small_body(request))
        known = {item.full_name for item in self.source.config.policies.policies}
        if order.policy is not None and order.policy not in known:
            raise BodyError("kill", [Fault("policy", repr(order.policy), ", ".join(sorted(known)) or "null")])
        by = f"http {asker_of(request)}"
        try:
            self.kills.latch(order.level, order.policy, order.reason, by, forced=order.forced)
            persisted = True
        except OperatingError:
            # The level counts; whoever set it must know that a restart would lose it.
            persisted = False
        return JSONResponse(
            {**self._kill_state(), "persisted": persisted}, status_code=200 if persisted else 500
        )

    def _kill_state(self) -> dict[str, Any]:
        table, now = self.kills.table, self.clock.monotonic()
        return {
            "level": table.everyone.value,
            "policies": {policy: level.value for policy, level in table.levels.items()},
            "epochs": dict(table.epochs),
            "transitions": [
                {"policy": policy or None, "to": way.target.level.value, "share": way.share(now)}
                for policy, way in table.transitions.items()
            ],
            "sources": [
                {"policy": policy or None, "source": source.value, "level": level.value}
                for policy, sources in table.sources.items()
                for source, level in sources.items()
            ],
            "latches": [latch.to_mapping() for latch in self.kills.latches],
            "file": self._kill_file_state(),
            "trips": [
                {
                    "engine": trip.engine.url,
                    "reason": trip.reason,
                    "remaining_seconds": round(self.trips.remaining_seconds(trip), 3),
                }
                for trip in self.trips.active()
            ],
        }

    def _kill_file_state(self) -> dict[str, Any] | None:
        if self.kill_file is None:
            return None
        fault = self.kill_file.fault
        return {"path": str(self.kill_file.path), "fault": _fault(fault) if fault else None}

    def config_age(self) -> float:
        """Return the seconds since the configuration was last read."""
        return self.clock.monotonic() - self.source.status.read_at

    def _details(self) -> dict[str, Any]:
        status = self.source.status
        return {
            "draining": self.lifecycle.draining,
            "policies": [policy.full_name for policy in self.source.config.policies.policies],
            "faults": [_fault(fault) for fault in status.faults],
            "config_age_seconds": round(self.config_age(), 3),
            "kill": {"level": self.kills.table.everyone.value, "file": self._kill_file_state()},
            "engines": [_engine(view) for view in self.fleet.views()],
        }


def asker_of(request: Request) -> str:
    """Return whose request it is: a client's address, or the one that another worker passes on."""
    if request.client is not None:
        return request.client.host
    return request.headers.get(ASKER_HEADER, "unknown")


@dataclass(frozen=True, slots=True)
class KillOrder:
    """What a body asks for: a level, for a policy or for all, and whether it is to count at once."""

    level: KillLevel
    policy: str | None
    reason: str
    forced: bool


def read_kill(body: bytes) -> KillOrder:
    """
    Read the body that sets a kill level.

    Raises:
        BodyError: with every fault.
    """
    document = scan(body)
    fields = {name: value(document, member.value_span) for name, member in document.members.items()}
    faults = [Fault(name, "a key", ", ".join(KILL_FIELDS)) for name in fields if name not in KILL_FIELDS]
    asked = fields.get("level")
    level = level_named(asked) if isinstance(asked, str) else None
    policy, reason, forced = fields.get("policy"), fields.get("reason", ""), fields.get("force", False)
    if level is None:
        found = repr(asked)[:80] if "level" in fields else "nothing"
        faults.append(Fault("level", found, LEVEL_FORMS))
    if policy is not None and not isinstance(policy, str):
        faults.append(Fault("policy", type(policy).__name__, "namespace/name, or null for all policies"))
    if not isinstance(reason, str) or len(reason) > REASON_LENGTH_MAX:
        faults.append(
            Fault("reason", type(reason).__name__, f"a text of at most {REASON_LENGTH_MAX} characters")
        )
    if not isinstance(forced, bool):
        faults.append(Fault("force", type(forced).__name__, "true or false"))
    if faults or level is None:
        raise BodyError("kill", faults)
    return KillOrder(level, policy, reason, forced)


def read_warm(body: bytes) -> tuple[str | None, str | None]:
    """
    Read the body that asks for engines to be warmed up: a policy and an engine, each null or missing for all.

    Raises:
        BodyError: with every fault.
    """
    document = scan(body)
    fields = {name: value(document, member.value_span) for name, member in document.members.items()}
    faults = [Fault(name, "a key", ", ".join(WARM_FIELDS)) for name in fields if name not in WARM_FIELDS]
    policy, engine = fields.get("policy"), fields.get("engine")
    if policy is not None and not isinstance(policy, str):
        faults.append(Fault("policy", type(policy).__name__, "namespace/name, or null for all policies"))
    if engine is not None and not isinstance(engine, str):
        faults.append(Fault("engine", type(engine).__name__, "a ready engine's URL, or null for all"))
    if faults:
        raise BodyError("warm", faults)
    return policy, engine


async def small_body(request: Request) -> bytes:
    """
    Return the body of a request that is about the gateway itself.

    Raises:
        TooLarge: it is over the limit, which is far more than such requests need.
    """
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > KILL_BYTES_MAX:
            raise TooLarge(f"the body is larger than the limit of {KILL_BYTES_MAX} bytes")
    return body


def _engine(view: View) -> dict[str, Any]:
    return {
        "url": view.engine.url,
        "ready": view.ready,
        "in_flight": view.in_flight,
        "plugin": view.info.plugin.value,
        "reason": view.info.reason,
        "batch": view.info.batch,
    }


def _chat_template(model: str, template: ChatTemplate) -> dict[str, Any]:
    return {
        "model": model,
        "takesLaterSystemMessage": template.takes_later_system,
        "printsToolCallIds": template.prints_call_ids,
    }


def _learned(name: str, known: PolicyLearning, prompts: Prompts) -> dict[str, Any]:
    return {
        "policy": name,
        "template": None if known.template is None else to_mapping(known.template),
        "tail": None if known.tail is None else {"id": known.tail.run_id, "elements": known.tail.length},
        "departures": [
            {
                "kind": kind,
                "path": path,
                "guess": guess,
                "offset": miss.offset,
                "count": miss.count,
                "tokens": miss.lost_tokens,
            }
            for (kind, path, guess), miss in reversed(known.misses.items())
        ],
        "versions": prompts.versions.shown(name, prompts.segment_tokens.of),
    }


def _fault(fault: Fault) -> dict[str, str]:
    return {"path": fault.path, "value": fault.value, "allowed": fault.allowed}
