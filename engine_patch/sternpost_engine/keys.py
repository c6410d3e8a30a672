"""
The identity of a stored tail.

A tail is looked up by a 64-bit hash and then compared whole: a hash alone would, sooner or later, put one
prompt's rules under another prompt's answer. Everything that changes the KV of the same tokens is part of
the identity, so that old and new never mix.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import Final, Protocol

LOOKUP_BYTES: Final = 8
"""The lookup hash has 64 bits: small enough for a dictionary, and never trusted alone."""

_DOMAIN: Final = b"sternpost-tail-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class TailIdentity:
    """
    Everything but the tail's own tokens that its KV depends on, or that separates one owner from another.

    `engine` sums up the engine's side: model revision, dtypes, RoPE parameters, tensor-parallel layout.
    """

    mode: str
    anchor: int
    scaffold: str
    salt: str
    epoch: int
    lora: str
    kind: str
    engine: str
    correction: str = "none"


@dataclass(frozen=True, slots=True)
class TailKey:
    """A tail's identity, its token ids as packed 32-bit integers, and the hash to look both up by."""

    lookup: int
    identity: TailIdentity
    tokens: bytes

    @property
    def length(self) -> int:
        """The number of tokens in the tail."""
        return len(self.tokens) // array("i").itemsize

    def same_owner(self, other: TailKey) -> bool:
        """Whether both belong to one sharing scope, so that whoever asks for one may read the other."""
        return self.identity.salt == other.identity.salt

    def same_tail(self, other: TailKey) -> bool:
        """Whether both name the same tail: compared whole, never by the hash."""
        return self.identity == other.identity and self.tokens == other.tokens


class TailHash(Protocol):
    """How the lookup hash is made; tests pass one that collides."""

    def __call__(self, identity: TailIdentity, tokens: bytes) -> int:
        """Return an unsigned integer of 64 bits."""


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Return token ids as packed 32-bit integers, in this machine's byte order."""
    return array("i", tokens).tobytes()


def hash_tail(identity: TailIdentity, tokens: bytes) -> int:
    """Hash a tail over length-prefixed, tagged parts; equal in every process of one machine type."""
    digest = blake2b(digest_size=LOOKUP_BYTES, key=_DOMAIN)
    for field in fields(identity):
        part = str(getattr(identity, field.name)).encode("utf-8", "surrogatepass")
        digest.update(f"{field.name}:{len(part)}:".encode())
        digest.update(part)
    digest.update(f"tokens:{len(tokens)}:".encode())
    digest.update(tokens)
    return int.from_bytes(digest.digest(), "big")


def tail_key(identity: TailIdentity, tokens: Sequence[int], hash_function: TailHash = hash_tail) -> TailKey:
    """Build the key of the tail with these token ids."""
    packed = pack_tokens(tokens)
    return TailKey(hash_function(identity, packed), identity, packed)
