"""
The pipeline: the stages in their order, for one exchange after the other.

Refusals are typed and answered in one place. A failure in the deciding stages, which is ours alone, never
costs a request: it passes through plainly, as at the highest kill level.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final

from starlette.types import Receive, Scope, Send

from sternpost_core.clock import Clock
from sternpost_core.errors import SternpostError
from sternpost_core.hint import Report
from sternpost_core.kill import KillLevel
from sternpost_core.policy_match import PolicySet
from sternpost_gateway.admit import Admission
from sternpost_gateway.builder import TailBuilder
from sternpost_gateway.callers import Callers
from sternpost_gateway.canary import Rollouts
from sternpost_gateway.canonicalize import Canonicalized, canonicalize
from sternpost_gateway.client import Client
from sternpost_gateway.cold_gate import ColdGate, Entry, Pass, patience_of
from sternpost_gateway.compose import Composed, compose
from sternpost_gateway.decoding import acceptable
from sternpost_gateway.eligible import eligible
from sternpost_gateway.errors import (
    ClientGone,
    ClientStalled,
    Disconnected,
    FirstByteTimeout,
    GatewayError,
    Overloaded,
    UpstreamCut,
    UpstreamError,
    answer_of,
    error_object,
)
from sternpost_gateway.findings import Findings
from sternpost_gateway.fleet import Engine, Fleet, Flight
from sternpost_gateway.forward import Forward
from sternpost_gateway.headers import BATCH_HEADER, as_mapping, request_id_of
from sternpost_gateway.identify import Identified, identify
from sternpost_gateway.kills import KillTable
from sternpost_gateway.metrics import NO_POLICY, Metrics
from sternpost_gateway.model_list import ModelList
from sternpost_gateway.model_name import MODELS_PATH
from sternpost_gateway.observe import Observer
from sternpost_gateway.pings import pinging
from sternpost_gateway.plan import (
    IsDemoted,
    Planned,
    depends_on_template,
    nothing_demoted,
    plan,
    wants_stream,
)
from sternpost_gateway.prompts import Prompts
from sternpost_gateway.receive import Received, is_inspected, receive
from sternpost_gateway.record import CLIENT_GONE, Recorder, arm_label, lesson_of, policy_label
from sternpost_gateway.relay import CLIENT_ERRORS, SERVER_ERRORS, Relay, Relayed
from sternpost_gateway.rendering import Fixed
from sternpost_gateway.router import Routed, Router
from sternpost_gateway.segment import Segmented, segment
from sternpost_gateway.settings import Settings
from sternpost_gateway.shadow.sampler import ShadowSampler
from sternpost_gateway.shadow.verdicts import Verdicts
from sternpost_gateway.sse import error_event
from sternpost_gateway.tails import Tails
from sternpost_gateway.trace_facts import tell_answered, tell_decided, tell_refused, tell_routed
from sternpost_gateway.tracing import NO_TRACING, Stage, Trace, Tracing, logged_as
from sternpost_gateway.trips import Trips
from sternpost_gateway.upstream import UpstreamResponse
from sternpost_gateway.warmer import Warmer

logger = logging.getLogger(__name__)

FOLLOWS_MAX: Final = 8
"""How often a request follows another that fails; then it goes on by itself."""

RENEWED_SECONDS: Final = 0.1
"""A decision that is older when its request goes out is remembered anew."""

PREFILL_PATIENCE: Final = 2.0
"""How many times the predicted prefill a whole answer's prompt counts as being computed."""

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
    rollouts: Callable[[], Rollouts]
    callers: Callers
    admission: Admission
    gate: ColdGate
    fleet: Fleet
    prompts: Prompts
    tails: Tails
    trips: Trips
    builder: TailBuilder
    models: ModelList
    warmer: Warmer
    verdicts: Verdicts
    shadow: ShadowSampler
    router: Router
    forward: Forward
    metrics: Metrics
    tracing: Tracing = NO_TRACING


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A request that may go to its engine now."""

    routed: Routed
    flight: Flight
    gate: Pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A request that an engine has begun to answer; `at` is when it was sent, in monotonic seconds."""

    composed: Composed
    admitted: Admitted
    at: float
    response: UpstreamResponse


class Pipeline:
    """The ASGI application for everything that is for engines."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._recorder = Recorder(parts.metrics, parts.tails, parts.fleet, parts.trips)
        self._findings = Findings(parts.metrics, parts.prompts.tokens)
        self._observer = Observer(parts.prompts, parts.metrics)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one exchange."""
        settings, clock = self._parts.settings, self._parts.clock
        client = Client(scope, receive, send, limits=settings.limits, timeouts=settings.timeouts, clock=clock)
        request_id = request_id_of(client.headers)
        with (
            self._parts.tracing.request(client.method, client.path, client.headers) as trace,
            logged_as(request_id, trace),
        ):
            await self._guard(client, request_id, trace)

    async def _guard(self, client: Client, request_id: str, trace: Trace) -> None:
        """Serve an exchange; whatever goes wrong, it is counted, and its client gets an answer."""
        try:
            await self._serve(client, request_id, trace)
        except ClientGone:
            trace.failed(CLIENT_GONE)
            self._recorder.refused(NO_POLICY, CLIENT_GONE)
        except SternpostError as error:
            await self._answer(client, request_id, trace, error)
        except Exception as error:  # noqa: BLE001
            # The outermost boundary of an exchange: whatever went wrong, its client gets an answer.
            logger.error("request %s failed: %s", request_id, _where(error))
            await self._answer(client, request_id, trace, error)

    async def _serve(self, client: Client, request_id: str, trace: Trace) -> None:
        parts = self._parts
        arrived = parts.clock.monotonic()
        caller = await parts.callers.identify(client.headers, certified=client.certified)
        reads = parts.kills().everyone is not KillLevel.PLAIN_PROXY
        by_model = reads and parts.fleet.serves_several()
        inspect = reads and is_inspected(client)
        with parts.admission.request(is_surplus=client.is_surplus), ExitStack() as stack:
            if by_model and client.method == "GET" and client.path == MODELS_PATH:
                await self._list_models(client, request_id)
                return
            declared = client.check_framing() or 0
            received = await receive(
                client,
                request_id,
                arrived,
                caller,
                inspect=inspect,
                by_model=by_model,
                trace=trace,
                count=stack.enter_context(parts.admission.body(declared if inspect else 0)),
            )
            trace.event(Stage.RECEIVED)
            planned = self._decide(received)
            tell_decided(planned)
            await self._exchange(client, planned)

    async def _list_models(self, client: Client, request_id: str) -> None:
        client.expect_no_body()
        answer = await client.run_until_gone(self._parts.models.answer())
        self._recorder.refused(NO_POLICY, answer.code)
        await client.answer(answer, request_id)

    def _decide(self, received: Received) -> Planned:
        """Run the deciding stages; a failure in them that is ours passes the request through plainly."""
        parts = self._parts
        try:
            identified = identify(received, parts.policies(), parts.kills(), parts.rollouts())
            return decide(identified, parts.prompts, self._findings, parts.secret, parts.verdicts.is_demoted)
        except Exception as error:  # noqa: BLE001
            # Deciding is an extra: no request may be lost to it.
            parts.metrics.fallthroughs.inc()
            logger.error("request %s passes plainly, deciding failed: %s", received.request_id, _where(error))
            return plain(received)

    def _renewed(self, planned: Planned) -> Planned:
        """Decide anew about a request that has waited while more was switched off for it."""
        identified = planned.identified
        policy = identified.policy.full_name if identified.policy else None
        if self._parts.kills().least(policy) <= identified.level:
            return planned
        return self._decide(identified.received)

    async def _exchange(self, client: Client, planned: Planned) -> None:
        policy, received = policy_label(planned), planned.identified.received
        try:
            await client.run_until_gone(self._send_and_relay(client, planned))
        except ClientGone as error:
            received.trace.failed(CLIENT_GONE)
            if isinstance(error, ClientStalled):
                self._parts.metrics.stalled_clients.inc()
            self._recorder.refused(policy, CLIENT_GONE, arm_label(planned))
        except GatewayError as error:
            self._recorder.refused(policy, answer_of(error).code, arm_label(planned))
            tell_refused(received.trace, answer_of(error))
            await self._reply(client, received.request_id, error)

    async def _send_and_relay(self, client: Client, planned: Planned) -> None:
        parts = self._parts
        with ExitStack() as stack:
            request_id = planned.identified.received.request_id
            ping_seconds = parts.settings.timeouts.ping_seconds if wants_stream(planned) else 0.0
            async with pinging(client, request_id, ping_seconds):
                sent = await self._reach(client, planned, stack)
            # After the end this keeps the connection; before it, it tells the engine that nobody waits.
            stack.callback(sent.response.close)
            response = acceptable(sent.response, planned.identified.received.headers)
            relay = Relay(client, parts.settings.limits, parts.clock.monotonic, lambda: self._began(sent))
            relayed = await relay.run(sent.composed, response, self._policy_headers(sent.composed))
            self._finish(sent, relayed)

    def _began(self, sent: Sent) -> None:
        """Note the first byte of an answer: the engine has computed the prompt, unless it is an error."""
        admitted = sent.admitted
        sent.composed.planned.identified.received.trace.event(Stage.FIRST_BYTE)
        admitted.flight.computed()
        if sent.response.status >= CLIENT_ERRORS:
            return
        admitted.gate.computed()
        self._parts.router.began(admitted.routed)
        if wants_stream(sent.composed.planned):
            self._parts.gate.began(admitted.routed, self._parts.clock.monotonic() - sent.at)

    def _finish(self, sent: Sent, relayed: Relayed) -> None:
        composed = sent.composed
        if relayed.cut:
            logger.warning(
                "request %s: %s cut its answer",
                composed.planned.identified.received.request_id,
                composed.engine.url,
            )
        report = self._recorder.answered(composed, relayed)
        tell_answered(composed, relayed, report)
        if relayed.status < CLIENT_ERRORS:
            self._observe(composed, report)
        if relayed.cut or relayed.status >= SERVER_ERRORS:
            self._note_ejection(sent.admitted.routed)
        elif relayed.status >= CLIENT_ERRORS:
            self._parts.router.refused(sent.admitted.routed)
        else:
            self._parts.router.succeeded(sent.admitted.routed, lesson_of(relayed, report, sent.at))

    def _observe(self, composed: Composed, report: Report | None) -> None:
        """Learn from an exchange; a failure in that is ours alone, and the answer is out already."""
        try:
            self._observer.observe(composed.planned)
            self._parts.shadow.offer(composed, report)
            self._want_counts(composed.planned, composed.engine)
        except Exception as error:  # noqa: BLE001
            # Learning is an extra: no exchange may fail for it.
            request_id = composed.planned.identified.received.request_id
            logger.error("request %s teaches nothing, learning failed: %s", request_id, _where(error))

    async def _reach(self, client: Client, planned: Planned, stack: ExitStack) -> Sent:
        """Send the request until an engine answers: twice at most, and the second time within the budget."""
        parts = self._parts
        tried: list[Engine] = []
        again = stack.enter_context(ExitStack())
        while True:
            landing = stack.enter_context(ExitStack())
            admitted = await self._admit(planned, tried, landing)
            tried.append(admitted.routed.engine)
            planned = self._renewed(planned)
            composed = self._compose(planned, admitted.routed.engine)
            self._presume(planned, admitted, landing)
            try:
                sent_at = parts.clock.monotonic()
                response = await parts.forward.send(composed, client, again=len(tried) > 1)
            except UpstreamError as error:
                landing.close()
                if client.upload_error is not None:
                    raise client.upload_error from None
                self._note_failure(composed, admitted.routed, error)
                give_back = await self._retry(planned, client, error, tried)
                if give_back is None:
                    raise
                again.callback(give_back)
                parts.metrics.retries.inc()
            else:
                # An answer that has begun is a load like any other.
                again.close()
                parts.fleet.answered(composed.engine)
                return Sent(composed=composed, admitted=admitted, at=sent_at, response=response)

    async def _admit(self, planned: Planned, tried: list[Engine], landing: ExitStack) -> Admitted:
        """Choose an engine and wait until it has room; what has failed meanwhile is chosen anew."""
        parts, identified = self._parts, planned.identified
        headers = as_mapping(identified.received.headers)
        entry = Entry(
            tenant=identified.tenant or "",
            wait_seconds=patience_of(headers),
            in_batch=bool(headers.get(BATCH_HEADER)),
        )
        follows = 0
        while True:
            follows += 1
            routed, decided = self._route(planned, tried), parts.clock.monotonic()
            waiting = landing.enter_context(ExitStack())
            flight = waiting.enter_context(parts.fleet.flight(routed.engine, routed.uncached_tokens))
            gate = await parts.gate.enter(routed, replace(entry, may_follow=follows < FOLLOWS_MAX))
            if gate is not None:
                waiting.callback(gate.leave)
                if parts.clock.monotonic() - decided >= RENEWED_SECONDS:
                    # It may have waited for longer than a decision counts.
                    parts.router.sent(routed)
                ahead = flight.sent().ahead_tokens(routed.prefill_rate)
                routed = replace(routed, queued_tokens=ahead)
                identified.received.trace.event(Stage.ADMITTED)
                return Admitted(routed=routed, flight=flight, gate=gate)
            waiting.close()

    def _presume(self, planned: Planned, admitted: Admitted, landing: ExitStack) -> None:
        """
        Let go of an engine's room when a whole answer's prompt ought to have been computed.

        A stream says so by its first byte; a whole answer says nothing until all of it is there.
        """
        if wants_stream(planned):
            return

        def computed() -> None:
            admitted.flight.computed()
            admitted.gate.computed()

        seconds = PREFILL_PATIENCE * admitted.routed.prefill_seconds
        landing.callback(asyncio.get_running_loop().call_later(seconds, computed).cancel)

    def _note_failure(self, composed: Composed, routed: Routed, error: UpstreamError) -> None:
        engine = composed.engine
        if isinstance(error, Disconnected | UpstreamCut):
            self._recorder.disconnected(composed)
        logger.warning("engine %s: %s", engine.url, error)
        self._note_ejection(routed)
        if not isinstance(error, FirstByteTimeout) and self._parts.fleet.failed(engine):
            logger.error("engine %s is not ready: too many failures in a row", engine.url)
            self._parts.metrics.engines_ready.set(len(self._parts.fleet.ready_views()))

    def _note_ejection(self, routed: Routed) -> None:
        if self._parts.router.failed(routed):
            self._parts.metrics.ejections.labels(routed.engine.url).inc()

    async def _retry(
        self, planned: Planned, client: Client, error: UpstreamError, tried: list[Engine]
    ) -> Callable[[], None] | None:
        """
        Return what gives back a retry, when it is this request's turn to be sent again.

        None where it may not be: a byte has come, the body is gone, or there is no engine to try.
        """
        if isinstance(error, FirstByteTimeout | UpstreamCut) or len(tried) >= ATTEMPTS_MAX:
            return None
        views = eligible(self._parts.router.views(), planned.policy, planned.identified.model)
        others = [view for view in views if view.engine not in tried]
        has_target = bool(others) or (
            isinstance(error, Disconnected) and self._parts.fleet.is_ready(tried[-1])
        )
        if client.upload_gone or not has_target:
            return None
        return await self._parts.admission.take_retry()

    def _route(self, planned: Planned, tried: list[Engine]) -> Routed:
        """Choose an engine, and let it count there at once, so that what comes next knows of it."""
        routed = self._parts.router.route(planned, tried)
        self._parts.router.sent(routed)
        self._parts.metrics.affinity.labels(routed.affinity.value).inc()
        tell_routed(planned, routed)
        return routed

    def _compose(self, planned: Planned, engine: Engine) -> Composed:
        """Make the body for an engine, and have built there what it lacks."""
        parts = self._parts
        info, tripped = parts.fleet.info(engine), parts.trips.is_tripped(engine)
        composed = compose(planned, engine, info, parts.tails, tripped=tripped)
        if planned.wish is not None:
            parts.warmer.note(planned.wish)
        if composed.outlook.wanted is not None:
            parts.builder.want(engine, composed.outlook.wanted)
        if depends_on_template(planned):
            parts.prompts.chat_templates.want(engine, planned.identified.model)
        return composed

    def _want_counts(self, planned: Planned, engine: Engine) -> None:
        """Have a policy's segments counted in the background, now that the engine has answered the prompt."""
        chat, document = planned.segmented.chat, planned.segmented.canonicalized.document
        if planned.versions and chat is not None and document is not None:
            self._parts.prompts.segment_tokens.want(engine, Fixed(document, chat))

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

    async def _answer(self, client: Client, request_id: str, trace: Trace, error: Exception) -> None:
        self._recorder.refused(NO_POLICY, answer_of(error).code)
        tell_refused(trace, answer_of(error))
        await self._reply(client, request_id, error)

    async def _reply(self, client: Client, request_id: str, error: Exception) -> None:
        """Answer with an error, if there is still something to be answered."""
        if isinstance(error, Overloaded):
            self._parts.metrics.sheds.inc()
        try:
            if client.started:
                if client.only_pinged:
                    await client.write(error_event(error_object(error)))
                return
            await client.answer(answer_of(error), request_id)
        except ClientGone:
            logger.info("request %s: the client left before its answer", request_id)


def decide(
    identified: Identified,
    prompts: Prompts,
    findings: Findings,
    secret: bytes,
    is_demoted: IsDemoted = nothing_demoted,
) -> Planned:
    """Run the stages from the canonical form to the plan."""
    template = prompts.chat_templates.of(identified.model)
    canonicalized = canonicalize(
        identified, prompts.pins, prompts.lines, takes_later_system=template.takes_later_system
    )
    findings.tell(canonicalized)
    return plan(segment(canonicalized, prompts.learning.tail), secret, prompts.versions, is_demoted)


def plain(received: Received) -> Planned:
    """Return the plan of a request that goes out exactly as it came, to the least loaded engine."""
    nobody = Identified(received=received, model=received.model, level=KillLevel.PLAIN_PROXY)
    return Planned(segmented=Segmented(Canonicalized(nobody, received.document, frozenset()), None))


def _where(error: Exception) -> str:
    """Describe an error by its kind and place only: its text may repeat what a user wrote."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "nowhere"
    return f"{type(error).__name__} at {place}"
