"""Where clients have to prove who they are, nobody else gets to an engine, and tenants are whose they are."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from sternpost_core.errors import SettingsError, SternpostError
from sternpost_core.policy_match import Caller
from sternpost_fakes.clock import FakeClock
from sternpost_fakes.engine import running_engine
from sternpost_fakes.gateway import SUPPORT_POLICY, eventually, running_gateway
from sternpost_gateway.bearer_tokens import BearerTokens, KeyServer, read_key_set
from sternpost_gateway.callers import Callers, secret_of
from sternpost_gateway.client_keys import digest_of, read_client_keys
from sternpost_gateway.errors import KeysUnavailable, Unauthorized
from sternpost_gateway.headers import Headers
from sternpost_gateway.settings import Credentials, Settings, TokenRules, check_settings

RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
SHARED_SECRET = "a secret of thirty-two characters"

ISSUER, AUDIENCE = "https://issuer.example", "sternpost"
RULES = TokenRules(keys="keys.json", issuer=ISSUER, audiences=(AUDIENCE,))
CHAT = {"model": "qwen", "messages": [{"role": "user", "content": "hi"}]}

KeyMaker = Callable[[], Mapping[str, Any]]


def published(name: str = "k1", key: rsa.RSAPrivateKey = RSA_KEY) -> dict[str, Any]:
    """Return the key set that an issuer publishes."""
    public = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {"keys": [{**public, "kid": name, "use": "sig", "alg": "RS256"}]}


def claims(**changed: Any) -> dict[str, Any]:
    """Return what a valid token says; it is valid from 1970 until an hour later."""
    said = {"iss": ISSUER, "aud": AUDIENCE, "exp": 4_000_000_000, "sub": "acme", **changed}
    return {name: value for name, value in said.items() if value is not None}


def token(said: Mapping[str, Any], key: Any = RSA_KEY, algorithm: str = "RS256", name: str = "k1") -> str:
    """Return a signed token."""
    return jwt.encode(dict(said), key, algorithm, headers={"kid": name} if name else None)


class FixedKeys:
    """Keys that a test sets."""

    def __init__(self, keys: Mapping[str, Any]) -> None:
        self.keys = read_key_set(keys) if keys else {}
        self.asked = 0

    async def ask(self) -> None:
        """Count."""
        self.asked += 1

    async def run(self) -> None:
        """Do nothing."""


def checker(keys: Mapping[str, Any], clock: FakeClock | None = None) -> BearerTokens:
    """Return what checks tokens by these keys."""
    return BearerTokens(RULES, FixedKeys(keys), clock or FakeClock())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        pytest.param(((b"authorization", b"Bearer abc"),), "abc", id="bearer"),
        pytest.param(((b"authorization", b"bearer  abc "),), "abc", id="spaces"),
        pytest.param(((b"x-api-key", b"abc"),), "abc", id="x-api-key"),
        pytest.param(((b"api-key", b"abc"),), "abc", id="api-key"),
        pytest.param(((b"authorization", b"Basic abc"), (b"x-api-key", b"key")), "key", id="basic-aside"),
        pytest.param(((b"authorization", b"Bearer "),), "", id="empty"),
        pytest.param(((b"authorization", b"Bearer " + b"a" * 20_000),), "", id="too-long"),
        pytest.param((), "", id="none"),
    ],
)
def test_key_is_found_where_clients_put_it(headers: Headers, expected: str) -> None:
    """By OpenAI's header, or by those of others."""
    assert expected == secret_of(headers)


def test_keys_are_read_by_line(tmp_path: Path) -> None:
    """A tenant may have several keys; comments and empty lines say nothing."""
    path = tmp_path / "keys"
    path.write_text(f"# ours\nacme {digest_of('k1')}\n\nacme  {digest_of('k2')}\nother\t{digest_of('k3')}\n")

    assert ["acme", "acme", "other"] == [read_client_keys(path)[digest_of(key)] for key in ("k1", "k2", "k3")]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        pytest.param("acme sk-plain-text-key", "--client-keys line 1", id="not-hashed"),
        pytest.param(f"\n{digest_of('k')}", "--client-keys line 2", id="no-tenant"),
        pytest.param(f"a {digest_of('k')}\nb {digest_of('k')}", "--client-keys line 2", id="two-tenants"),
    ],
)
def test_wrong_line_is_named_and_not_repeated(tmp_path: Path, text: str, place: str) -> None:
    """Somebody may have written the key itself: the error says where, and not what."""
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        read_client_keys(path)

    assert [place] == [fault.path for fault in caught.value.faults]
    assert "sk-plain" not in str(caught.value)


async def test_valid_token_names_its_tenant_and_claims() -> None:
    """What it claims as text can be a policy's tenant; everything else is left."""
    caller = await checker(published()).caller(token(claims(org="north", roles=["a"], age=7)))

    assert Caller("acme", {"iss": ISSUER, "aud": AUDIENCE, "sub": "acme", "org": "north"}) == caller


BAD_TOKENS = [
    pytest.param(token(claims(exp=1000)), id="expired"),
    pytest.param(token(claims(exp=None)), id="no-expiry"),
    pytest.param(token(claims(iss="https://other.example")), id="issuer"),
    pytest.param(token(claims(iss=None)), id="no-issuer"),
    pytest.param(token(claims(aud="other")), id="audience"),
    pytest.param(token(claims(aud=None)), id="no-audience"),
    pytest.param(token(claims(nbf=3_999_999_999)), id="not-yet"),
    pytest.param(token(claims(sub=None)), id="no-tenant"),
    pytest.param(token(claims(), key=OTHER_KEY), id="forged"),
    pytest.param(token(claims(), key=OTHER_KEY, name="k9"), id="unknown-key"),
    pytest.param(token(claims(), key=EC_KEY, algorithm="ES256"), id="another-kind-of-key"),
    pytest.param(token(claims(), key=RSA_KEY, algorithm="RS384"), id="algorithm-not-allowed"),
    pytest.param(token(claims(), key=SHARED_SECRET, algorithm="HS256"), id="shared-secret"),
    pytest.param(jwt.encode(claims(), "", "none"), id="unsigned"),
    pytest.param("a.b.c", id="nonsense"),
    pytest.param("", id="empty"),
]


@pytest.mark.parametrize("bad", BAD_TOKENS)
async def test_token_that_fails_any_check_is_refused(bad: str) -> None:
    """Signature, algorithm, issuer, audience, time and tenant all have to be right."""
    with pytest.raises(Unauthorized):
        await checker(published()).caller(bad)


async def test_token_is_checked_once_and_ends_on_time() -> None:
    """Remembering that a signature was right does not make a token live for longer."""
    clock = FakeClock()
    checked = checker(published(), clock)
    valid = token(claims())
    assert "acme" == (await checked.caller(valid)).tenant
    clock.advance(4_000_000_100 - clock.time())

    with pytest.raises(Unauthorized, match="expired"):
        await checked.caller(valid)


async def test_without_keys_nobody_is_believed_and_nobody_blamed() -> None:
    """An issuer that cannot be reached is not the client's fault."""
    with pytest.raises(KeysUnavailable):
        await checker({}).caller(token(claims()))


def issuer(sets: list[Any]) -> tuple[Callable[[], httpx.AsyncClient], list[int]]:
    """Return a client of an issuer that publishes one set after the other, and how often it was asked."""
    asked: list[int] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(1)
        now = sets[min(len(asked), len(sets)) - 1]
        return httpx.Response(503) if now is None else httpx.Response(200, json=now)

    return lambda: httpx.AsyncClient(transport=httpx.MockTransport(answer)), asked


async def test_new_key_of_the_issuer_is_found_and_asked_for_rarely() -> None:
    """A token by an unknown key has the keys read again, at most once in ten seconds."""
    clock = FakeClock()
    client, asked = issuer([published("k1"), published("k2", OTHER_KEY)])
    tokens = BearerTokens(RULES, KeyServer("https://issuer.example/keys", client, clock), clock)
    await tokens.caller(token(claims()))
    renewed = token(claims(), key=OTHER_KEY, name="k2")
    with pytest.raises(Unauthorized):
        await tokens.caller(renewed)
    assert 1 == len(asked)
    clock.advance(11)

    assert "acme" == (await tokens.caller(renewed)).tenant
    with pytest.raises(Unauthorized):
        await tokens.caller(token(claims()))


async def test_keys_outlive_an_issuer_that_fails() -> None:
    """What was read last counts."""
    clock = FakeClock()
    client, _ = issuer([published(), None])
    server = KeyServer("https://issuer.example/keys", client, clock)
    await server.ask()
    clock.advance(11)
    await server.ask()

    assert ["k1"] == list(server.keys)


@pytest.mark.parametrize(
    "found",
    [
        pytest.param({}, id="empty"),
        pytest.param([], id="list"),
        pytest.param({"keys": []}, id="no-key"),
        pytest.param({"keys": [{"kty": "nonsense"}]}, id="unknown-kind"),
    ],
)
def test_what_is_no_key_set_is_refused(found: Any) -> None:
    """An answer that cannot be used takes nothing away."""
    with pytest.raises(SternpostError):
        read_key_set(found)


def test_shared_secret_is_no_public_key() -> None:
    """A secret in a key set would let whoever may check tokens make them."""
    secret = {"kty": "oct", "k": "c2VjcmV0", "kid": "s"}

    assert ["k1"] == list(read_key_set({"keys": [*published()["keys"], secret]}))


BASE = Settings(policies=Path(), engines=("http://e:1",), credentials=Credentials.NONE)


@pytest.mark.parametrize(
    ("changed", "flags"),
    [
        pytest.param(
            {"client_keys": Path("k"), "credentials": Credentials.FORWARD}, ["--credentials"], id="sent-on"
        ),
        pytest.param(
            {"tokens": replace(RULES, issuer="", audiences=())}, ["--jwt-issuer", "--jwt-audience"], id="half"
        ),
        pytest.param({"tokens": replace(RULES, algorithms=("HS256",))}, ["--jwt-algorithm"], id="symmetric"),
        pytest.param({"tokens": replace(RULES, algorithms=("none",))}, ["--jwt-algorithm"], id="unsigned"),
        pytest.param({"tokens": replace(RULES, keys="http://issuer")}, ["--jwt-keys"], id="plain-http"),
    ],
)
def test_unsafe_settings_are_refused_by_name(changed: dict[str, Any], flags: list[str]) -> None:
    """What would let anybody in, or the client's key out, does not start."""
    with pytest.raises(SettingsError) as caught:
        check_settings(replace(BASE, **changed))

    assert flags == [fault.path for fault in caught.value.faults]


async def test_open_gateway_asks_nobody() -> None:
    """Without keys and tokens everybody may, as before."""
    assert None is await Callers().identify(())


def with_keys(path: Path) -> Callable[[Settings], Settings]:
    """Return a change of settings: clients need a key of this file."""
    return lambda given: replace(given, client_keys=path, credentials=Credentials.NONE)


async def test_only_known_keys_reach_an_engine(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A wrong key is told in OpenAI's shape, and is in no log; an edit of the file counts at once."""
    caplog.set_level(logging.DEBUG)
    keys = tmp_path / "keys"
    keys.write_text(f"acme {digest_of('sk-good')}\n")
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=with_keys(keys)) as gateway,
    ):

        async def ask(key: str | None) -> httpx.Response:
            headers = {} if key is None else {"authorization": f"Bearer {key}"}
            return await gateway.client.post("/v1/chat/completions", json=CHAT, headers=headers)

        refused = [await ask(None), await ask("sk-wrong")]
        served = await ask("sk-good")
        open_paths = [(await gateway.client.get(path)).status_code for path in ("/healthz", "/metrics")]
        keys.write_text(f"acme {digest_of('sk-new')}\n")
        async with asyncio.timeout(5):
            while (await ask("sk-good")).status_code != 401:
                await asyncio.sleep(0.05)
        renewed = await ask("sk-new")
        keys.write_text("acme sk-in-plain-text\n")
        await eventually(lambda: "last good one stays" in caplog.text)
        kept = await ask("sk-new")

    assert [(401, "invalid_api_key", "Bearer")] * 2 == [
        (one.status_code, one.json()["error"]["code"], one.headers["www-authenticate"]) for one in refused
    ]
    assert [200, 200, 200] == [served.status_code, renewed.status_code, kept.status_code]
    assert [200, 200] == open_paths
    assert None is engine.chats[0].header("authorization")
    assert "sk-" not in caplog.text


async def test_tenants_are_those_of_keys_and_claims(tmp_path: Path) -> None:
    """One tenant's keys share a cache salt, other tenants' do not; a claim counts as the token has it."""
    keys, jwks = tmp_path / "keys", tmp_path / "jwks.json"
    keys.write_text(
        "".join(f"{name} {digest_of(key)}\n" for name, key in (("acme", "a1"), ("acme", "a2"), ("b", "b1")))
    )
    jwks.write_text(json.dumps(published()))
    by_key = SUPPORT_POLICY.replace("tenantFrom: {header: x-tenant-id}", "tenantFrom: {apiKey: true}")
    by_claim = SUPPORT_POLICY.replace("tenantFrom: {header: x-tenant-id}", "tenantFrom: {jwtClaim: org}")
    by_claim = by_claim.replace("name: support", "name: claims").replace("[qwen]", "[other]")
    rules = replace(RULES, keys=str(jwks))

    def settings(given: Settings) -> Settings:
        return replace(with_keys(keys)(given), tokens=rules)

    async with (
        running_engine() as engine,
        running_gateway(
            tmp_path, [engine.url], policy=f"{by_key}---\n{by_claim}", settings=settings
        ) as gateway,
    ):

        async def salt(secret: str, model: str = "qwen") -> str:
            headers = {"authorization": f"Bearer {secret}"}
            body = {**CHAT, "model": model}
            answer = await gateway.client.post("/v1/chat/completions", json=body, headers=headers)
            assert 200 == answer.status_code
            return str(json.loads(engine.chats[-1].body).get("cache_salt"))

        first, second, third = [await salt(key) for key in ("a1", "a2", "b1")]
        north, again, south = [
            await salt(token(claims(org=org, jti=str(number))), "other")
            for number, org in enumerate(("north", "north", "south"))
        ]

    assert first == second and first != third
    assert north == again and north != south and north != "None"
