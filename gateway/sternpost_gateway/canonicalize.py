"""
The canonicalize stage: which of the body's fields do not reach an engine.

Fields that only the gateway may set are taken out of every request that is looked into, whatever the policy:
a client that chose its own salt could share another's KV, and one that wrote hints could fill the store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sternpost_gateway.identify import CACHE_FIELD, Identified

SALT_FIELD: Final = "cache_salt"
HINT_FIELD: Final = "kv_transfer_params"

RESERVED_FIELDS: Final = frozenset({SALT_FIELD, HINT_FIELD, CACHE_FIELD})
"""Fields of a client's body that never pass."""


@dataclass(frozen=True, slots=True)
class Canonicalized:
    """A request and the fields of its body that go."""

    identified: Identified
    removed: frozenset[str]


def canonicalize(identified: Identified) -> Canonicalized:
    """Find the reserved fields that the client has set."""
    document = identified.received.document
    present = document.members.keys() if document is not None else ()
    return Canonicalized(identified, RESERVED_FIELDS.intersection(present))
