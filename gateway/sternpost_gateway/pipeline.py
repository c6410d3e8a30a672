"""
The pipeline: the stages in their order, for one exchange after the other.

Refusals are typed and answered in one place. A failure in the deciding stages, which is ours alone, never
costs a request: it passes through plainly, as at the highest kill level.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from starlette.types import Receive, Scope, Send

from sternpost_core.clock import Clock
from sternpost_core.errors import SternpostError
from sternpost_core.kill import KillLevel
from sternpost_core.policy_match import PolicySet
from sternpost_gateway.admit import Admission
from sternpost_gateway.builder import TailBuilder
from sternpost_gateway.canonicalize import Canonicalized, canonicalize
from sternpost_gateway.client import Client
from sternpost_gateway.compose import Composed, compose
from sternpost_gateway.decoding import acceptable
from sternpost_gateway.errors import (
    ClientGone,
    Disconnected,
    FirstByteTimeout,
    GatewayError,
    Overloaded,
    UpstreamCut,
    UpstreamError,
    answer_of,
)
from sternpost_gateway.findings import Findings
from sternpost_gateway.fleet import Engine, Fleet
from sternpost_gateway.forward import Forward
from sternpost_gateway.headers import request_id_of
from sternpost_gateway.identify import Identified, identify
from sternpost_gateway.kills import KillTable
from sternpost_gateway.metrics import NO_POLICY, Metrics
from sternpost_gateway.plan import Planned, plan
from sternpost_gateway.receive import Received, is_inspected, receive
from sternpost_gateway.record import CLIENT_GONE, Recorder, policy_label
from sternpost_gateway.relay import Relay, Relayed
from sternpost_gateway.route import Candidate, Strategy, require_candidates
from sternpost_gateway.segment import Segmented, segment
from sternpost_gateway.settings import Settings
from sternpost_gateway.tails import Tails, TailState
from sternpost_gateway.tool_pins import ToolPins
from sternpost_gateway.trips import Trips
from sternpost_gateway.upstream import UpstreamResponse
from sternpost_gateway.versions import Versions
from sternpost_gateway.volatile import VolatileLines

logger = logging.getLogger(__name__)

ATTEMPTS_MAX: Final = 2
"""How often a request is sent: a second time only while no byte of an answer has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Everything that the pipeline is made of; `policies` and `kills` return what is live now."""

    settings: Settings
    secret: bytes
    clock: Clock
    policies: Callable[[], PolicySet]
    kills: Callable[[], KillTable]
    admission: Admission
    fleet: Fleet
    pins: ToolPins
    lines: VolatileLines
    tails: Tails
    trips: Trips
    builder: TailBuilder
    versions: Versions
    affinity: Strategy
    least_loaded: Strategy
    forward: Forward
    metrics: Metrics


class Pipeline:
    """The ASGI application for everything below `/v1`."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._recorder = Recorder(parts.metrics, parts.tails, parts.fleet, parts.trips)
        self._findings = Findings(parts.metrics)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one exchange."""
        settings, clock = self._parts.settings, self._parts.clock
        client = Client(scope, receive, send, limits=settings.limits, timeouts=settings.timeouts, clock=clock)
        request_id = request_id_of(client.headers)
        try:
            await self._serve(client, request_id)
        except ClientGone:
            self._recorder.refused(NO_POLICY, CLIENT_GONE)
        except SternpostError as error:
            await self._answer(client, request_id, error)
        except Exception as error:  # noqa: BLE001
            # The outermost boundary of an exchange: whatever went wrong, its client gets an answer.
            logger.error("request %s failed: %s", request_id, _where(error))
            await self._answer(client, request_id, error)

    async def _serve(self, client: Client, request_id: str) -> None:
        parts = self._parts
        arrived = parts.clock.monotonic()
        inspect = is_inspected(client) and parts.kills().everyone is not KillLevel.PLAIN_PROXY
        with parts.admission.request(), ExitStack() as stack:
            if inspect:
                stack.enter_context(parts.admission.body(self._body_bytes(client)))
            received = await receive(client, request_id, arrived, inspect=inspect)
            await self._exchange(client, self._decide(received))

    def _body_bytes(self, client: Client) -> int:
        declared = client.check_framing()
        return self._parts.settings.limits.body_bytes_max if declared is None else declared

    def _decide(self, received: Received) -> Planned:
        """Run the deciding stages; a failure in them that is ours passes the request through plainly."""
        parts = self._parts
        try:
            identified = identify(received, parts.policies(), parts.kills())
            canonicalized = canonicalize(identified, parts.pins, parts.lines)
            self._findings.tell(canonicalized)
            return plan(segment(canonicalized), parts.secret, parts.versions)
        except Exception as error:  # noqa: BLE001
            # Deciding is an extra: no request may be lost to it.
            parts.metrics.fallthroughs.inc()
            logger.error("request %s passes plainly, deciding failed: %s", received.request_id, _where(error))
            return plain(received)

    async def _exchange(self, client: Client, planned: Planned) -> None:
        policy = policy_label(planned)
        try:
            await client.run_until_gone(self._send_and_relay(client, planned))
        except ClientGone:
            self._recorder.refused(policy, CLIENT_GONE)
        except GatewayError as error:
            self._recorder.refused(policy, answer_of(error).code)
            await self._reply(client, planned.identified.received.request_id, error)

    async def _send_and_relay(self, client: Client, planned: Planned) -> None:
        parts = self._parts
        relay = Relay(client, parts.settings.limits, parts.clock.monotonic)
        with ExitStack() as stack:
            composed, response = await self._reach(client, planned, stack)
            # After the end this keeps the connection; before it, it tells the engine that nobody waits.
            stack.callback(response.close)
            response = acceptable(response, planned.identified.received.headers)
            relayed = await relay.run(composed, response, self._policy_headers(composed))
            self._finish(composed, relayed)

    def _finish(self, composed: Composed, relayed: Relayed) -> None:
        if relayed.cut:
            logger.warning(
                "request %s: %s cut its answer",
                composed.planned.identified.received.request_id,
                composed.engine.url,
            )
        self._recorder.answered(composed, relayed)

    async def _reach(
        self, client: Client, planned: Planned, stack: ExitStack
    ) -> tuple[Composed, UpstreamResponse]:
        """Send the request until an engine answers: twice at most, and the second time within the budget."""
        parts = self._parts
        tried: list[Engine] = []
        while True:
            composed = self._compose(planned, tried)
            tried.append(composed.engine)
            flight = stack.enter_context(ExitStack())
            flight.enter_context(parts.fleet.flight(composed.engine))
            try:
                response = await parts.forward.send(composed, client)
            except UpstreamError as error:
                flight.close()
                if client.upload_error is not None:
                    raise client.upload_error from None
                self._note_failure(composed, error)
                if not self._may_retry(planned, error, tried):
                    raise
                stack.enter_context(parts.admission.retry())
                parts.metrics.retries.inc()
            else:
                parts.fleet.answered(composed.engine)
                return composed, response

    def _note_failure(self, composed: Composed, error: UpstreamError) -> None:
        engine = composed.engine
        if isinstance(error, Disconnected | UpstreamCut):
            self._recorder.disconnected(composed)
        logger.warning("engine %s: %s", engine.url, error)
        if self._parts.fleet.failed(engine):
            logger.error("engine %s is not ready: too many failures in a row", engine.url)
            self._parts.metrics.engines_ready.set(len(self._parts.fleet.ready_views()))

    def _may_retry(self, planned: Planned, error: UpstreamError, tried: list[Engine]) -> bool:
        """Allow a retry if no byte has come, the body is at hand and there is an engine to try."""
        if isinstance(error, FirstByteTimeout | UpstreamCut) or len(tried) >= ATTEMPTS_MAX:
            return False
        received = planned.identified.received
        others = [view for view in self._parts.fleet.ready_views() if view.engine not in tried]
        has_target = bool(others) or (
            isinstance(error, Disconnected) and self._parts.fleet.is_ready(tried[-1])
        )
        return not received.has_body and has_target and self._parts.admission.may_retry()

    def _compose(self, planned: Planned, tried: list[Engine]) -> Composed:
        """Choose an engine, preferably one not tried yet, and make the body for it."""
        parts = self._parts
        views = parts.fleet.ready_views()
        fresh = [view for view in views if view.engine not in tried] or views
        wish = planned.wish
        candidates = [
            Candidate(
                view.engine,
                view.in_flight,
                wish is not None and parts.tails.state(view.engine, wish.key) is TailState.BUILT,
            )
            for view in fresh
        ]
        strategy = parts.least_loaded if planned.conversation is None else parts.affinity
        choice = strategy.choose(require_candidates(candidates), planned.conversation)
        parts.metrics.affinity.labels(choice.affinity.value).inc()
        composed = compose(
            planned,
            choice.engine,
            parts.fleet.info(choice.engine),
            parts.tails,
            tripped=parts.trips.is_tripped(choice.engine),
        )
        if composed.outlook.wanted is not None:
            parts.builder.want(choice.engine, composed.outlook.wanted)
        return composed

    def _policy_headers(self, composed: Composed) -> list[tuple[bytes, bytes]]:
        planned, outlook = composed.planned, composed.outlook
        if planned.policy is None or not self._parts.settings.response_headers:
            return []
        headers = [(b"x-sternpost-policy", planned.policy.full_name.encode())]
        if planned.versions:
            headers.append((b"x-sternpost-version", planned.versions.encode()))
        headers.append((b"x-sternpost-reuse", str(outlook.reuse_tokens).encode()))
        if outlook.bypass is not None:
            headers.append((b"x-sternpost-bypass", outlook.bypass.value.encode()))
        return headers

    async def _answer(self, client: Client, request_id: str, error: Exception) -> None:
        self._recorder.refused(NO_POLICY, answer_of(error).code)
        await self._reply(client, request_id, error)

    async def _reply(self, client: Client, request_id: str, error: Exception) -> None:
        """Answer with an error, if there is still something to be answered."""
        if isinstance(error, Overloaded):
            self._parts.metrics.sheds.inc()
        if client.started:
            return
        try:
            await client.answer(answer_of(error), request_id)
        except ClientGone:
            logger.info("request %s: the client left before its answer", request_id)


def plain(received: Received) -> Planned:
    """Return the plan of a request that goes out exactly as it came, to the least loaded engine."""
    nobody = Identified(received=received, level=KillLevel.PLAIN_PROXY)
    return Planned(segmented=Segmented(Canonicalized(nobody, received.document, frozenset()), None))


def _where(error: Exception) -> str:
    """Describe an error by its kind and place only: its text may repeat what a user wrote."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "nowhere"
    return f"{type(error).__name__} at {place}"
