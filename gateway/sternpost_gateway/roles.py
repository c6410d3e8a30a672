"""What the roles of a chat's messages say, as raw JSON."""

from __future__ import annotations

from typing import Final

from sternpost_core.jsonspan import Document, Span, members

FIXED_ROLES: Final = frozenset({b'"system"', b'"developer"'})
"""The roles of messages that are the same for all users."""

USER_ROLE: Final = b'"user"'
ASSISTANT_ROLE: Final = b'"assistant"'


def role_of(document: Document, message: Span) -> bytes:
    """Return a message's role as it was sent; empty if there is none."""
    if not document.body.startswith(b"{", message.start):
        return b""
    role = members(document, message).get("role")
    return b"" if role is None else document.body[slice(*role.value_span)]


def is_fixed(document: Document, message: Span) -> bool:
    """Say whether a message is one of the system or the developer."""
    return role_of(document, message) in FIXED_ROLES
