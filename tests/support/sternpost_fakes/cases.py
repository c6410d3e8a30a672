"""Faults seen in the field, as requests in `tests/cases`, and what becomes of them in a whole gateway."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from sternpost_fakes.engine import FakeEngine, running_engine
from sternpost_fakes.gateway import SUPPORT_POLICY, RunningGateway, running_gateway

CASES: Final = Path(__file__).parents[2] / "cases"
CHAT: Final = "/v1/chat/completions"

MOVE_CLOCK: Final = {"name": "clock", "detect": "Timestamp", "action": "Relocate"}
MOVE_DATE: Final = {"name": "date", "detect": "Date", "action": "Relocate"}
STRIP_BILLING: Final = {"name": "billing", "detect": "BillingHeader", "action": "Strip"}


@dataclass(frozen=True, slots=True)
class Request:
    """A request of a case, as it is to be sent."""

    body: bytes
    headers: Mapping[str, str]

    @property
    def decoded(self) -> Any:
        """Return the body, decoded."""
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A case's requests, their bodies as the engine got them, the answers, and the gateway."""

    sent: list[Request]
    seen: list[bytes]
    answers: list[httpx.Response]
    gateway: RunningGateway

    @property
    def decoded(self) -> list[Any]:
        """Return the bodies that the engine got, decoded."""
        return [json.loads(body) for body in self.seen]

    def spans(self, detector: str, action: str = "Report") -> float:
        """Return how many volatile spans were told of."""
        name = "sternpost_gateway_volatile_spans_total"
        return self.gateway.metric(name, policy="agents/support", detector=detector, action=action)

    def lists(self, outcome: str) -> float:
        """Return how many tool lists had this outcome."""
        name = "sternpost_gateway_tool_lists_total"
        return self.gateway.metric(name, policy="agents/support", outcome=outcome)


def case(name: str) -> list[Request]:
    """Return the requests of a case."""
    found = json.loads((CASES / f"{name}.json").read_text(encoding="utf-8"))["requests"]
    return [Request(_body(request), request.get("headers", {})) for request in found]


def raw_request(name: str, index: int) -> bytes:
    """Return a request of a case that is given with its framing; what follows its head is its body."""
    found = json.loads((CASES / f"{name}.json").read_text(encoding="utf-8"))["requests"]
    return str(found[index]["http_raw"]).encode()


def _body(request: Mapping[str, Any]) -> bytes:
    if "http_raw" in request:
        return str(request["http_raw"]).encode().partition(b"\r\n\r\n")[2]
    if "body_b64" in request:
        return base64.b64decode(request["body_b64"])
    if "body_text" in request:
        return str(request["body_text"]).encode()
    return json.dumps(request["body"], separators=(",", ":"), ensure_ascii=False).encode()


def case_policy(*rules: Mapping[str, str], canonicalize: str = "Report") -> dict[str, Any]:
    """Return a policy that only canonicalizes, so that nothing else changes a byte."""
    mapping: dict[str, Any] = yaml.safe_load(SUPPORT_POLICY)
    mapping["spec"]["match"] = {"models": ["demo-model"]}
    mapping["spec"]["prompt"] = {"canonicalize": canonicalize, "volatile": [dict(rule) for rule in rules]}
    del mapping["spec"]["suffixCache"]
    return mapping


async def run(
    directory: Path,
    requests: list[Request],
    policy: Mapping[str, Any],
    *,
    engine: FakeEngine | None = None,
    path: str = CHAT,
) -> Outcome:
    """Send requests one after the other; each has to be answered with status 200."""
    engine = engine or FakeEngine()
    text = yaml.safe_dump(dict(policy))
    async with running_engine(engine), running_gateway(directory, [engine.url], policy=text) as gateway:
        answers = [
            await gateway.client.post(path, content=one.body, headers=dict(one.headers)) for one in requests
        ]
        assert [200] * len(requests) == [answer.status_code for answer in answers]
        return Outcome(requests, [seen.body for seen in engine.posts(path)], answers, gateway)
