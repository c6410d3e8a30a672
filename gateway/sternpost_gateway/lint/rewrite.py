"""Rewriting logged requests as a gateway would, by its own stages and in the log's order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from sternpost_core.jsonspan import Document, apply, scan
from sternpost_core.policy import Canonicalize, Policy
from sternpost_gateway.canonicalize import canonicalize
from sternpost_gateway.identify import SESSION_FIELD, Identified, text_member
from sternpost_gateway.lint.request import LoggedRequest
from sternpost_gateway.plan import Planned, plan
from sternpost_gateway.receive import Received
from sternpost_gateway.segment import segment
from sternpost_gateway.tool_pins import ToolPins
from sternpost_gateway.versions import Versions
from sternpost_gateway.volatile import VolatileLines

LINES_CHARS_MAX: Final = 128 * 1024
"""Characters of lines that each rewriter remembers; there is one for each policy that is tried."""

SCOPES_MAX: Final = 16
"""Tenants whose pins each rewriter keeps; a gateway keeps more, in more memory."""

SECRET: Final = b"a salt that no engine sees"
"""Salts only keep tenants apart here."""

MODEL_FIELD: Final = "model"


@dataclass(frozen=True, slots=True)
class Rewritten:
    """
    A request as an engine would get it.

    `salt` is what it shares the cache under, None for everybody. `tail_key` names the tail that the suffix
    store may hold for it, None where it is not asked.
    """

    document: Document = field(repr=False)
    salt: str | None
    tail_key: str | None


class Rewriter:
    """
    Rewrites requests under one policy; with None they stay as they are.

    `takes_later_system` is what the gateway asks the engine: whether its chat template takes a system message
    behind the first.
    """

    def __init__(self, policy: Policy | None, *, takes_later_system: bool = False) -> None:
        self.pins = policy is not None and policy.prompt.canonicalize is Canonicalize.PIN
        self._policy = policy
        self._takes_later_system = takes_later_system
        self._pins = ToolPins(scopes_max=SCOPES_MAX)
        self._lines = VolatileLines(chars_max=LINES_CHARS_MAX)
        self._versions = Versions(None)

    def rewrite(self, request: LoggedRequest) -> Rewritten:
        """Return a request as it would be sent on."""
        if self._policy is None:
            return Rewritten(request.document, None, None)
        planned = self._plan(request)
        document = planned.segmented.canonicalized.document
        assert document is not None, "logged requests have been read"
        if planned.edits:
            document = scan(apply(document.body, planned.edits))
        key = None if planned.wish is None else f"{planned.wish.key}"
        return Rewritten(document, planned.salt, key)

    def _plan(self, request: LoggedRequest) -> Planned:
        identified = identified_as(request, self._policy)
        canonicalized = canonicalize(
            identified, self._pins, self._lines, takes_later_system=self._takes_later_system
        )
        return plan(segment(canonicalized), SECRET, self._versions)


def identified_as(request: LoggedRequest, policy: Policy | None) -> Identified:
    """Return a logged request as the identify stage would."""
    received = Received(
        method="POST",
        path=request.path,
        target=request.path,
        headers=(),
        request_id=str(request.number),
        arrived=0.0,
        has_body=False,
        document=request.document,
    )
    return Identified(
        received=received,
        model=text_member(request.document, MODEL_FIELD),
        policy=policy,
        tenant=request.tenant,
        session=request.session or text_member(request.document, SESSION_FIELD),
    )
