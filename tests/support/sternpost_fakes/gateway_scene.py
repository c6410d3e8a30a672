"""A request, a policy and a kill level, run through the deciding stages without a gateway around them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from sternpost_core.content import ContentId
from sternpost_core.jsonspan import scan
from sternpost_core.kill import KillLevel
from sternpost_core.policy import Policy
from sternpost_core.policy_match import PolicySet
from sternpost_core.policy_parse import parse
from sternpost_fakes.clock import FakeClock
from sternpost_fakes.gateway import SUPPORT_POLICY
from sternpost_gateway.canary import Rollouts
from sternpost_gateway.canonicalize import Canonicalized, canonicalize
from sternpost_gateway.compose import Composed, compose
from sternpost_gateway.fleet import Engine, Info, Plugin
from sternpost_gateway.headers import Headers
from sternpost_gateway.identify import identify
from sternpost_gateway.kills import KillTable
from sternpost_gateway.plan import Planned, plan
from sternpost_gateway.receive import CHAT_PATH, Received
from sternpost_gateway.segment import segment
from sternpost_gateway.tails import Tails
from sternpost_gateway.tokens import TailFacts
from sternpost_gateway.tool_pins import ToolPins
from sternpost_gateway.versions import Versions
from sternpost_gateway.volatile import VolatileLines

SECRET = b"s" * 32
ENGINE = Engine("http://engine")
READY = Info(plugin=Plugin.READY, batch="b1", tail_tokens_min=4, tail_tokens_max=4096)

SYSTEM = {"role": "system", "content": "You help ."}
TAIL = {"role": "system", "content": "rules"}
USER = {"role": "user", "content": "hi"}
CHAT = {"model": "qwen", "messages": [SYSTEM, USER, TAIL]}
MOVED = {"model": "qwen", "messages": [SYSTEM, TAIL, USER]}


def policy(**changes: Any) -> Policy:
    """Return the support policy with other parts of its spec; None takes a part away."""
    mapping = yaml.safe_load(SUPPORT_POLICY)
    for key, changed in changes.items():
        if changed is None:
            del mapping["spec"][key]
        else:
            mapping["spec"][key] = changed
    return parse(mapping)


PRESERVE = {"layout": "Preserve", "tail": {"source": "LastSystemMessage"}}
MIDDLE_TAIL = {"model": "qwen", "messages": [SYSTEM, USER, TAIL, USER]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Everything that a decision depends on; `raw`, if given, is how the body is written."""

    body: Mapping[str, Any]
    policy: Policy | None = None
    headers: Headers = ((b"x-tenant-id", b"acme"),)
    level: KillLevel = KillLevel.NONE
    path: str = CHAT_PATH
    request_id: str = "id-1"
    raw: bytes | None = None
    takes_later_system: bool = False
    rollouts: Rollouts = field(default_factory=dict)

    def canonicalize(self, pins: ToolPins | None = None, lines: VolatileLines | None = None) -> Canonicalized:
        """Run the stages up to the canonical form."""
        received = Received(
            method="POST",
            path=self.path,
            target=self.path,
            headers=self.headers,
            request_id=self.request_id,
            arrived=0.0,
            has_body=False,
            document=scan(self.raw or json.dumps(self.body).encode()),
        )
        chosen = (self.policy or policy(),)
        kills = KillTable(levels={chosen[0].full_name: self.level}, epochs={chosen[0].full_name: 7})
        identified = identify(received, PolicySet(chosen), kills, self.rollouts)
        # What has remembered nothing yet is empty, and so would count as none.
        lines = VolatileLines() if lines is None else lines
        return canonicalize(identified, pins or ToolPins(), lines, takes_later_system=self.takes_later_system)

    def plan(self) -> Planned:
        """Run the deciding stages."""
        return plan(segment(self.canonicalize()), SECRET, Versions(None))

    def compose(self, tails: Tails | None = None, info: Info = READY, *, tripped: bool = False) -> Composed:
        """Run all stages up to the body."""
        return compose(self.plan(), ENGINE, info, tails or Tails(FakeClock()), tripped=tripped)


def body_of(composed: Composed) -> Any:
    """Return a composed body, decoded."""
    assert composed.body is not None
    return json.loads(composed.body)


def learned(planned: Planned, tokens: int = 300) -> Tails:
    """Return tails that know the tokens of a plan's template."""
    tails = Tails(FakeClock())
    assert planned.wish is not None
    facts = TailFacts((1, 2), tuple(range(tokens)), 2, ContentId("c" * 64))
    tails.learn(planned.wish.template.template_id, facts)
    return tails
