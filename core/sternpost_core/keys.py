"""
Keys that decide who shares what: the engine's cache salt, and the key that a conversation is routed by.

Every key is made of length-prefixed, tagged parts, so that ("org_1", "2345") and ("org_12345", "") never
meet. Python's own `hash()` is seeded per process and is used for none of them.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import Final

from sternpost_core.content import tagged
from sternpost_core.policy import Isolation

CACHE_SALT_PREFIX: Final = "sternpost-"
"""Marks a salt as ours, in the engine's logs and against a client that chooses its own."""

SECRET_BYTES_MIN: Final = 16
"""A shorter secret could be guessed from the salts that an engine sees."""

_OWNER_DOMAIN: Final = b"sternpost-owner"
_OWNER_BYTES: Final = 8
_SALT_DOMAIN: Final = "sternpost.dev/cache-salt"
_CONVERSATION_DOMAIN: Final = "sternpost.dev/conversation"
_KEY_VERSION: Final = 1
_RANK_BYTES: Final = 8


def cache_salt(
    secret: bytes,
    *,
    isolation: Isolation,
    policy: str,
    tenant: str = "",
    session: str = "",
    prefix_epoch: int = 0,
) -> str:
    """
    Return the `cache_salt` that the engine keeps one sharing scope's KV under.

    The scope is the tenant, the session of a tenant, or, for `Shared`, everybody under the policy `policy`
    ("namespace/name"). A new `prefix_epoch` makes everything under the old salt unreachable. Without a
    session, isolation `Session` is no isolation: the caller passes the conversation key instead.
    """
    assert len(secret) >= SECRET_BYTES_MIN, f"the secret needs at least {SECRET_BYTES_MIN} bytes"
    scope = {
        Isolation.TENANT: [("tenant", tenant)],
        Isolation.SESSION: [("tenant", tenant), ("session", session)],
        Isolation.SHARED: [("policy", policy)],
    }[isolation]
    parts = [*scope, ("prefix_epoch", str(prefix_epoch))]
    message = tagged(_SALT_DOMAIN, _KEY_VERSION, isolation.value, _encoded(parts))
    return CACHE_SALT_PREFIX + hmac.new(secret, message, hashlib.sha256).hexdigest()


def owner_of(salt: str) -> str:
    """
    Return the name of the sharing scope that a cache salt stands for: 16 hexadecimal digits, or nothing.

    It tells the salt to nobody, so that an answer can carry it. Where there is no salt, there is no scope.
    """
    if not salt:
        return ""
    raw = salt.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(raw, digest_size=_OWNER_BYTES, person=_OWNER_DOMAIN).hexdigest()


def conversation_key(
    *,
    model: str,
    scope: str,
    session: str | None,
    opening: Iterable[tuple[str, bytes]],
) -> str:
    """
    Return the key that keeps a conversation's requests together; `scope` is the cache salt or the tenant.

    With a session the key is the session's. Without one it is that of the `opening`: what the template
    renders first and every later turn repeats, as (tag, bytes): tools, system, first user message.
    """
    named = [("model", model.encode()), ("scope", scope.encode())]
    if session is None:
        parts = tagged(_CONVERSATION_DOMAIN, _KEY_VERSION, "opening", [*named, *opening])
    else:
        parts = tagged(_CONVERSATION_DOMAIN, _KEY_VERSION, "session", [*named, ("session", session.encode())])
    return hashlib.sha256(parts).hexdigest()


def rendezvous_rank(key: str, node: str) -> int:
    """Return the 64-bit rank of `node` for `key`: the node of the highest rank is the key's home."""
    parts = tagged(_CONVERSATION_DOMAIN, _KEY_VERSION, "rank", _encoded([("key", key), ("node", node)]))
    return int.from_bytes(hashlib.blake2b(parts, digest_size=_RANK_BYTES).digest(), "big")


def _encoded(parts: Iterable[tuple[str, str]]) -> list[tuple[str, bytes]]:
    return [(tag, value.encode()) for tag, value in parts]
