"""
Signed tokens (JWT) of clients: checked for signature, issuer, audience and time, by published keys.

What a token says is believed after all of that, and not before; of its header only the name of the key that
it was signed with.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import jwt

from sternpost_core.clock import Clock
from sternpost_core.errors import OperatingError
from sternpost_core.policy_match import Caller
from sternpost_gateway.bounded import Bounded
from sternpost_gateway.errors import KeysUnavailable, Unauthorized
from sternpost_gateway.settings import TokenRules
from sternpost_gateway.state_files import read_json
from sternpost_gateway.watched_files import WatchedFiles

logger = logging.getLogger(__name__)

LEEWAY_SECONDS: Final = 30.0
"""By which the issuer's clock and ours may differ."""

REFRESH_SECONDS: Final = 300.0
"""Between two readings of keys at a URL."""

UNKNOWN_KEY_SECONDS: Final = 10.0
"""Between two readings because a token names a key that is not known: a client could ask for them at will."""

FETCH_SECONDS: Final = 2.0
KEYS_BYTES_MAX: Final = 1024 * 1024
TOKENS_MAX: Final = 4096
"""Tokens whose signature has been checked and is not checked again."""

CLAIM_LENGTH_MAX: Final = 256
REFUSED: Final = "the token is not valid here"

KeySet = Mapping[str, jwt.PyJWK]
"""Public keys by their names."""


@dataclass(frozen=True, slots=True)
class Checked:
    """Whose a token is, until when, in Unix seconds."""

    caller: Caller
    expires: float


class KeyFile:
    """Keys in a file, read again when it changes."""

    def __init__(self, path: Path) -> None:
        self._file = WatchedFiles("--jwt-keys", [path], lambda: _read_key_file(path))

    @property
    def keys(self) -> KeySet:
        """Return the keys that count now."""
        return self._file.value

    async def ask(self) -> None:
        """Look at the file at once."""
        self._file.refresh()

    async def run(self) -> None:
        """Keep up with the file; runs until it is cancelled."""
        await self._file.watch()


class KeyServer:
    """Keys at a URL, read again now and then; those that were read last count for as long as it takes."""

    def __init__(self, url: str, client: Callable[[], httpx.AsyncClient], clock: Clock) -> None:
        self.keys: KeySet = {}
        self._url = url
        self._client = client
        self._clock = clock
        self._asked_at = float("-inf")
        self._asking = asyncio.Lock()

    async def ask(self) -> None:
        """Read the keys, unless that has just been done."""
        async with self._asking:
            if self._clock.monotonic() - self._asked_at >= UNKNOWN_KEY_SECONDS:
                await self._fetch()

    async def run(self) -> None:
        """Keep up with the keys; runs until it is cancelled."""
        while True:
            async with self._asking:
                await self._fetch()
            await asyncio.sleep(REFRESH_SECONDS if self.keys else UNKNOWN_KEY_SECONDS)

    async def _fetch(self) -> None:
        self._asked_at = self._clock.monotonic()
        try:
            async with self._client() as client:
                answer = await client.get(self._url, timeout=FETCH_SECONDS)
            if not answer.is_success or len(answer.content) > KEYS_BYTES_MAX:
                raise OperatingError(f"an answer with status {answer.status_code}")
            self.keys = read_key_set(answer.json())
        except (httpx.HTTPError, ValueError, OperatingError) as error:
            logger.error(
                "--jwt-keys: %s gives no keys (%s); the last ones stay", self._url, type(error).__name__
            )


class BearerTokens:
    """Checks tokens by `rules` and the keys of an issuer."""

    def __init__(self, rules: TokenRules, keys: KeyFile | KeyServer, clock: Clock) -> None:
        self._rules = rules
        self._source = keys
        self._clock = clock
        self._checked: Bounded[bytes, Checked] = Bounded(TOKENS_MAX)
        self._by: KeySet = {}

    async def run(self) -> None:
        """Keep the keys current; runs until it is cancelled."""
        await self._source.run()

    async def caller(self, token: str) -> Caller:
        """
        Return whose a token is.

        Raises:
            Unauthorized: it is not valid here, or not any more.
            KeysUnavailable: there are no keys yet to check it by.
        """
        if self._by is not self._source.keys:
            # Whatever a withdrawn key has signed is not believed for any longer.
            self._checked, self._by = Bounded(TOKENS_MAX), self._source.keys
        name = hashlib.sha256(token.encode()).digest()
        known = self._checked.get(name)
        if known is None:
            known = self._check(token, await self._key(token))
            self._checked.put(name, known)
        if known.expires + LEEWAY_SECONDS < self._clock.time():
            raise Unauthorized("the token has expired")
        return known.caller

    async def _key(self, token: str) -> jwt.PyJWK:
        try:
            name = str(jwt.get_unverified_header(token).get("kid", ""))
        except jwt.InvalidTokenError:
            raise Unauthorized(REFUSED) from None
        if _chosen(self._source.keys, name) is None:
            await self._source.ask()
        if not self._source.keys:
            raise KeysUnavailable("the issuer's keys are not known yet")
        found = _chosen(self._source.keys, name)
        if found is None:
            raise Unauthorized(REFUSED)
        return found

    def _check(self, token: str, key: jwt.PyJWK) -> Checked:
        rules = self._rules
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=list(rules.algorithms),
                audience=list(rules.audiences),
                issuer=rules.issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.InvalidTokenError:
            # Which of the checks has failed is nothing for whoever tries tokens out.
            raise Unauthorized(REFUSED) from None
        texts = {name: text for name, text in claims.items() if _is_short_text(text)}
        if rules.tenant_claim not in texts:
            raise Unauthorized(f"the token has no claim {rules.tenant_claim}")
        return Checked(Caller(tenant=texts[rules.tenant_claim], claims=texts), float(claims["exp"]))


def token_keys(rules: TokenRules, clock: Clock) -> KeyFile | KeyServer:
    """
    Return where the issuer's keys come from.

    Raises:
        OperatingError: they are in a file that cannot be used.
    """
    if not rules.keys.startswith("https://"):
        return KeyFile(Path(rules.keys))
    return KeyServer(rules.keys, lambda: httpx.AsyncClient(trust_env=False, follow_redirects=False), clock)


def read_key_set(found: Any) -> KeySet:
    """
    Return the public keys of a JSON Web Key Set; those of kinds that are not known are left out.

    Raises:
        OperatingError: it is none, or holds no key that can be used.
    """
    try:
        keys = jwt.PyJWKSet.from_dict(found).keys
    except (jwt.PyJWTError, AttributeError, TypeError, ValueError) as error:
        raise OperatingError(f"the keys are no JSON Web Key Set: {type(error).__name__}") from None
    # A secret in the place of a public key would let whoever may check tokens make them.
    return {str(key.key_id or ""): key for key in keys if key.key_type != "oct"}


def _read_key_file(path: Path) -> KeySet:
    found = read_json(path)
    if found is None:
        raise OperatingError(f"--jwt-keys: there is no file {path}")
    return read_key_set(found)


def _chosen(keys: KeySet, name: str) -> jwt.PyJWK | None:
    """Return the key of a name; of a token that names none, the only one."""
    if not name and len(keys) == 1:
        return next(iter(keys.values()))
    return keys.get(name)


def _is_short_text(text: object) -> bool:
    return isinstance(text, str) and 0 < len(text) <= CLAIM_LENGTH_MAX
