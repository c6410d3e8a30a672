"""
Who sends a request, where clients have to prove it: by a key from a file, or by a signed token.

A key or token travels in `Authorization: Bearer`, or where other makers' clients put theirs. It is compared,
and neither kept, logged nor sent on.
"""

from __future__ import annotations

from typing import Final, Protocol

from sternpost_core.clock import Clock
from sternpost_core.policy_match import Caller
from sternpost_gateway.client_keys import ClientKeys, digest_of, read_client_keys
from sternpost_gateway.errors import Unauthorized
from sternpost_gateway.headers import Headers
from sternpost_gateway.settings import Settings
from sternpost_gateway.watched_files import WatchedFiles

KEY_HEADERS: Final = frozenset({b"x-api-key", b"api-key"})
"""Where a key may stand alone."""

SECRET_LENGTH_MAX: Final = 16384
"""Of a key or token."""

TOKEN_DOTS: Final = 2
"""In a signed token; keys have none that would be taken for one."""


class Tokens(Protocol):
    """Checks signed tokens."""

    async def caller(self, token: str) -> Caller:
        """Return whose a token is; raises as `Callers.identify` says."""

    async def run(self) -> None:
        """Keep up with the issuer's keys; runs until it is cancelled."""


class Callers:
    """Finds out who sends a request; without keys and tokens, everybody may, and nobody is anybody."""

    def __init__(
        self,
        keys: WatchedFiles[ClientKeys] | None = None,
        tokens: Tokens | None = None,
        *,
        needs_certificate: bool = False,
    ) -> None:
        self.keys = keys
        self.tokens = tokens
        self._needs_certificate = needs_certificate

    async def identify(self, headers: Headers, *, certified: bool = False) -> Caller | None:
        """
        Return who sends a request, None where nobody has to prove it; `certified`: by a certificate, too.

        Raises:
            Unauthorized: the certificate, key or token is missing, wrong or too old.
            KeysUnavailable: tokens cannot be checked yet.
        """
        if self._needs_certificate and not certified:
            raise Unauthorized("there is no client certificate, and it takes one here")
        if self.keys is None and self.tokens is None:
            return None
        secret = secret_of(headers)
        if not secret:
            raise Unauthorized("there is no API key: send it as Authorization: Bearer KEY")
        if self.tokens is not None and (self.keys is None or secret.count(".") == TOKEN_DOTS):
            return await self.tokens.caller(secret)
        tenant = self.keys.value.get(digest_of(secret)) if self.keys is not None else None
        if tenant is None:
            raise Unauthorized("the API key is not known here")
        return Caller(tenant=tenant)


def secret_of(headers: Headers) -> str:
    """Return the key or token of a request, empty if there is none, or none that could be one."""
    for name, value in headers:
        text = value.decode("latin-1").strip()
        if name == b"authorization":
            scheme, _, text = text.partition(" ")
            if scheme.lower() != "bearer":
                continue
        elif name not in KEY_HEADERS:
            continue
        if len(text) <= SECRET_LENGTH_MAX and text.strip():
            return text.strip()
    return ""


def make_callers(settings: Settings, clock: Clock) -> Callers:
    """
    Return who finds out who sends a request.

    Raises:
        SettingsError, OperatingError: a file of keys cannot be used.
    """
    path = settings.client_keys
    keys = None if path is None else WatchedFiles("--client-keys", [path], lambda: read_client_keys(path))
    rules = settings.tokens
    certified = settings.tls is not None and settings.tls.client_ca is not None
    if rules is None:
        return Callers(keys, needs_certificate=certified)
    # Cryptography takes time and memory to load: only gateways that check tokens need it.
    from sternpost_gateway.bearer_tokens import BearerTokens, token_keys

    tokens = BearerTokens(rules, token_keys(rules, clock), clock)
    return Callers(keys, tokens, needs_certificate=certified)
