"""Salts and keys share exactly what the isolation says, and nothing by accident."""

import os
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.keys import CACHE_SALT_PREFIX, cache_salt, conversation_key, owner_of, rendezvous_rank
from sternpost_core.policy import Isolation

SECRET = b"an invented secret of this test"
PROGRAM = "from sternpost_core.keys import rendezvous_rank; print(rendezvous_rank('conversation', 'node-1'))"

names = st.text(st.characters(codec="utf-8"), max_size=12)


def salt(
    isolation: Isolation = Isolation.SESSION,
    *,
    secret: bytes = SECRET,
    policy: str = "agents/support",
    tenant: str = "acme",
    session: str = "s1",
    prefix_epoch: int = 0,
) -> str:
    """Return a salt that differs from the usual one only where the test says so."""
    return cache_salt(
        secret, isolation=isolation, policy=policy, tenant=tenant, session=session, prefix_epoch=prefix_epoch
    )


def test_salt_is_marked_and_never_changes() -> None:
    """The golden salt: a new encoding would make every engine's cache cold."""
    assert "sternpost-0a06174320415bfa713616d109689dd8a7530589c150393d00ddff409609c642" == salt()
    assert salt().startswith(CACHE_SALT_PREFIX)


def test_owner_names_the_scope_of_a_salt_and_never_changes() -> None:
    """The golden name: gateway and engine of neighbouring releases have to agree on it."""
    assert "c031d8c39761c07d" == owner_of(salt())
    assert "" == owner_of("")


@given(first=names, second=names)
def test_owners_are_equal_where_salts_are(first: str, second: str) -> None:
    """And tell no part of a salt, any of its characters in any order included."""
    assert (first == second) is (owner_of(first) == owner_of(second))
    assert len(owner_of(first)) == (16 if first else 0)


@pytest.mark.parametrize(
    ("isolation", "same_policy", "same_tenant", "same_session"),
    [
        pytest.param(Isolation.TENANT, False, True, False, id="tenant"),
        pytest.param(Isolation.SESSION, False, True, True, id="session"),
        pytest.param(Isolation.SHARED, True, False, False, id="shared"),
    ],
)
def test_isolation_decides_what_is_shared(
    isolation: Isolation, same_policy: bool, same_tenant: bool, same_session: bool
) -> None:
    """Another policy, tenant or session has another salt exactly where the isolation asks for it."""
    usual = salt(isolation)

    assert same_policy == (usual != salt(isolation, policy="agents/other"))
    assert same_tenant == (usual != salt(isolation, tenant="globex"))
    assert same_session == (usual != salt(isolation, session="s2"))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(("org_1", "2345"), ("org_12345", ""), id="moved-digits"),
        pytest.param(("", "org"), ("org", ""), id="empty-first"),
        pytest.param(("a", "b"), ("b", "a"), id="swapped"),
    ],
)
def test_parts_never_run_together(first: tuple[str, str], second: tuple[str, str]) -> None:
    """Tenant and session are told apart by their lengths, not by a separator."""
    assert salt(tenant=first[0], session=first[1]) != salt(tenant=second[0], session=second[1])


@given(names, names, names, names)
def test_salts_are_equal_only_for_equal_parts(
    tenant: str, session: str, other_tenant: str, other_session: str
) -> None:
    """No pair of tenant and session shares another pair's salt."""
    equal = (tenant, session) == (other_tenant, other_session)

    assert equal == (salt(tenant=tenant, session=session) == salt(tenant=other_tenant, session=other_session))


def test_isolations_of_one_text_differ() -> None:
    """A policy that is named as a tenant does not get the tenant's salt."""
    assert salt(Isolation.TENANT, tenant="x") != salt(Isolation.SHARED, policy="x")


def test_secret_and_epoch_are_part_of_the_salt() -> None:
    """Another gateway's secret, or a new prefix epoch, reaches none of the old KV."""
    assert salt() != salt(secret=SECRET + b"2")
    assert salt() != salt(prefix_epoch=1)


def test_short_secret_is_refused() -> None:
    """A secret that can be guessed is a mistake of the caller."""
    with pytest.raises(AssertionError, match="at least 16 bytes"):
        salt(secret=b"short")


def key(
    *,
    model: str = "m",
    scope: str = "acme",
    session: str | None = None,
    opening: list[tuple[str, bytes]] | None = None,
) -> str:
    """Return a conversation key that differs from the usual one only where the test says so."""
    return conversation_key(model=model, scope=scope, session=session, opening=opening or [("system", b"hi")])


def test_session_names_the_conversation() -> None:
    """With a session the opening does not matter, and without one it does."""
    assert key(session="s1") == key(session="s1", opening=[("system", b"other")])
    assert key(session="s1") != key(session="s2")
    assert key() != key(opening=[("system", b"other")])


@pytest.mark.parametrize("session", [None, "s1"])
def test_model_and_scope_part_conversations(session: str | None) -> None:
    """Equal openings of two tenants, or for two models, are two conversations."""
    assert 3 == len(
        {key(session=session), key(session=session, model="n"), key(session=session, scope="globex")}
    )


def test_empty_session_is_a_session() -> None:
    """An empty name is not the same as none."""
    assert key(session="") != key(session=None)


def test_rank_never_changes() -> None:
    """The golden rank: replicas of different releases agree on a conversation's home."""
    assert 17385570658239237657 == rendezvous_rank("conversation", "node-1")


@pytest.mark.parametrize("seed", ["0", "1", "4242", "random"])
def test_rank_does_not_depend_on_the_hash_seed(seed: str) -> None:
    """Another process with another seed finds the same rank."""
    environment = {**os.environ, "PYTHONHASHSEED": seed}

    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, check=True, capture_output=True, text=True
    ).stdout

    assert rendezvous_rank("conversation", "node-1") == int(found)


def test_homes_are_spread_evenly() -> None:
    """Each of four nodes is the home of about a quarter of the keys."""
    nodes = [f"node-{number}" for number in range(4)]
    homes = Counter(max(nodes, key=lambda node: rendezvous_rank(str(key), node)) for key in range(2000))

    assert 400 < min(homes.values())
    assert max(homes.values()) < 600


def test_only_the_keys_of_a_lost_node_move() -> None:
    """A node that goes takes only its own keys along."""
    nodes = ["a", "b", "c"]
    before = {
        number: max(nodes, key=lambda node: rendezvous_rank(str(number), node)) for number in range(300)
    }

    after = {
        number: max(["a", "b"], key=lambda node: rendezvous_rank(str(number), node)) for number in range(300)
    }

    assert {number: home for number, home in before.items() if home != "c"} == {
        number: home for number, home in after.items() if before[number] != "c"
    }
