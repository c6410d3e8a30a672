"""Each request gets at most one policy, and which one is never chance."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.errors import PolicyError
from sternpost_core.policy import Match, Policy, Tenancy, TenantSource, TenantSourceKind
from sternpost_core.policy_match import (
    API_KEY_TENANT_PREFIX,
    PolicySet,
    Traits,
    build_policy_set,
    matches,
    overlaps,
    session_of,
    settle,
    tenant_of,
)

HEADER = TenantSource(TenantSourceKind.HEADER, "x-tenant")
OTHER_HEADER = TenantSource(TenantSourceKind.HEADER, "x-team")
CLAIM = TenantSource(TenantSourceKind.JWT_CLAIM, "org")
API_KEY = TenantSource(TenantSourceKind.API_KEY)


def policy(
    name: str = "p",
    *,
    priority: int = 0,
    models: tuple[str, ...] = (),
    tenants: tuple[str, ...] = (),
    headers: dict[str, str] | None = None,
    source: TenantSource = HEADER,
) -> Policy:
    """Return a policy of which only the match matters."""
    match = Match(priority=priority, models=models, tenants=tenants, headers=headers or {})
    return Policy(name=name, pool="pool", match=match, tenancy=Tenancy(tenant_source=source))


NOTHING = Traits(None, None, {})

MATCHES = {
    "all-for-nothing": (policy(), NOTHING, True),
    "model": (policy(models=("m", "n")), Traits("n", None, {}), True),
    "other-model": (policy(models=("m",)), Traits("n", None, {}), False),
    "part-of-a-model": (policy(models=("m",)), Traits("m2", None, {}), False),
    "no-model": (policy(models=("m",)), NOTHING, False),
    "tenant": (policy(tenants=("acme",)), Traits(None, "acme", {}), True),
    "other-tenant": (policy(tenants=("acme",)), Traits(None, "globex", {}), False),
    "no-tenant": (policy(tenants=("acme",)), NOTHING, False),
    "header": (policy(headers={"x-app": "a"}), Traits(None, None, {"x-app": "a", "x": "y"}), True),
    "header-in-part": (policy(headers={"x-app": "a"}), Traits(None, None, {"x-app": "ab"}), False),
    "no-header": (policy(headers={"x-app": ""}), NOTHING, False),
    "one-of-two-headers": (policy(headers={"a": "1", "b": "2"}), Traits(None, None, {"a": "1"}), False),
    "all-but-the-model": (policy(models=("m",), tenants=("acme",)), Traits("n", "acme", {}), False),
}


@pytest.mark.parametrize(("candidate", "traits", "expected"), MATCHES.values(), ids=MATCHES.keys())
def test_everything_asked_for_must_hold(candidate: Policy, traits: Traits, expected: bool) -> None:
    """Each demand is exact, and what is not asked about does not matter."""
    assert expected == matches(candidate, traits)


OVERLAPS = {
    "all-and-all": (policy(), policy(), True),
    "all-and-one": (policy(), policy(models=("m",), tenants=("acme",), headers={"a": "1"}), True),
    "one-model-in-both": (policy(models=("m", "n")), policy(models=("n", "o")), True),
    "other-models": (policy(models=("m",)), policy(models=("n",)), False),
    "other-tenants": (policy(tenants=("acme",)), policy(tenants=("globex",)), False),
    "same-tenant": (policy(tenants=("acme", "x")), policy(tenants=("acme",)), True),
    "tenants-of-two-headers": (
        policy(tenants=("acme",)),
        policy(tenants=("globex",), source=OTHER_HEADER),
        True,
    ),
    "tenants-of-header-and-claim": (
        policy(tenants=("acme",)),
        policy(tenants=("globex",), source=CLAIM),
        True,
    ),
    "other-claims": (policy(tenants=("a",), source=CLAIM), policy(tenants=("b",), source=CLAIM), False),
    "other-header-values": (policy(headers={"a": "1"}), policy(headers={"a": "2"}), False),
    "two-headers": (policy(headers={"a": "1"}), policy(headers={"b": "2"}), True),
    "tenant-against-its-header": (policy(tenants=("acme",)), policy(headers={"x-tenant": "globex"}), False),
    "tenant-with-its-header": (policy(tenants=("acme",)), policy(headers={"x-tenant": "acme"}), True),
    "one-that-matches-nothing": (policy(tenants=("acme",), headers={"x-tenant": "globex"}), policy(), False),
}


@pytest.mark.parametrize(("first", "second", "expected"), OVERLAPS.values(), ids=OVERLAPS.keys())
def test_policies_overlap_where_one_request_could_match_both(
    first: Policy, second: Policy, expected: bool
) -> None:
    """The order of the two does not matter."""
    assert expected == overlaps(first, second)
    assert expected == overlaps(second, first)


few = st.sampled_from(["1", "2"])
some = st.lists(few, unique=True, max_size=2).map(tuple)
candidates = st.builds(
    policy,
    models=some,
    tenants=some,
    headers=st.dictionaries(st.sampled_from(["x-app", "x-tenant", "x-team"]), few, max_size=2),
    source=st.sampled_from([HEADER, OTHER_HEADER]),
)
REQUESTS = [
    (
        model,
        {name: value for name, value in [("x-app", app), ("x-tenant", tenant), ("x-team", team)] if value},
    )
    for model in (None, "1", "2")
    for app in ("", "1", "2")
    for tenant in ("", "1", "2")
    for team in ("", "1", "2")
]


@given(candidates, candidates)
def test_overlap_is_what_enumerating_requests_finds(first: Policy, second: Policy) -> None:
    """Over every request of a small world, two policies overlap exactly if some request gets both."""

    def gets(candidate: Policy, model: str | None, headers: dict[str, str]) -> bool:
        return PolicySet((candidate,)).select_for(headers, model) is not None

    both = any(gets(first, model, headers) and gets(second, model, headers) for model, headers in REQUESTS)
    assert both == overlaps(first, second)


def test_highest_priority_wins() -> None:
    """The order in which the policies came does not matter."""
    low, high = policy("low", priority=-1), policy("high", priority=7, models=("m",))

    for chosen in (build_policy_set([low, high]), build_policy_set([high, low])):
        assert high == chosen.select(Traits("m", None, {}))
        assert low == chosen.select(Traits("n", None, {}))


def test_no_policy_is_none() -> None:
    """A request that nothing matches gets no policy."""
    assert None is build_policy_set([]).select(NOTHING)
    assert None is build_policy_set([policy(models=("m",))]).select_for({}, None)


def test_each_policy_takes_the_tenant_from_its_own_header() -> None:
    """One request may be acme's for one policy and globex's for another."""
    first = policy("first", tenants=("acme",), source=HEADER, priority=1)
    second = policy("second", tenants=("acme",), source=OTHER_HEADER)
    chosen = build_policy_set([first, second])

    assert first == chosen.select_for({"x-tenant": "acme", "x-team": "acme"}, "m")
    assert second == chosen.select_for({"x-tenant": "globex", "x-team": "acme"}, "m")
    assert None is chosen.select_for({"x-tenant": "globex", "x-team": "globex"}, "m")


def test_policies_of_equal_priority_that_overlap_are_refused() -> None:
    """The fault names both, for every pair."""
    with pytest.raises(PolicyError) as caught:
        build_policy_set([policy("b"), policy("a"), policy("c", models=("m",)), policy("d", priority=1)])

    assert [
        ("default/a: spec.match.priority", "0, as in default/b, which can match the same request,"),
        ("default/a: spec.match.priority", "0, as in default/c, which can match the same request,"),
        ("default/b: spec.match.priority", "0, as in default/c, which can match the same request,"),
    ] == [(fault.path, fault.value) for fault in caught.value.faults]


def test_policies_of_equal_priority_may_stand_side_by_side() -> None:
    """Where no request could match both, the order is that of their names."""
    first, second = policy("a", models=("m",)), policy("b", models=("n",))

    assert (first, second) == build_policy_set([second, first]).policies


def test_one_name_is_one_policy() -> None:
    """Two policies of one full name are refused even when nothing could match both."""
    with pytest.raises(PolicyError, match="default/a: the name of two policies"):
        build_policy_set([policy("a", models=("m",)), policy("a", models=("n",), priority=3)])


@pytest.mark.parametrize(
    ("source", "headers", "expected"),
    [
        pytest.param(HEADER, {"x-tenant": "acme"}, "acme", id="header"),
        pytest.param(HEADER, {"x-team": "acme"}, None, id="other-header"),
        pytest.param(HEADER, {"x-tenant": ""}, None, id="empty-header"),
        pytest.param(CLAIM, {"authorization": "Bearer a.b.c"}, None, id="claim"),
        pytest.param(API_KEY, {}, None, id="no-key"),
        pytest.param(API_KEY, {"authorization": "", "x-api-key": ""}, None, id="empty-key"),
    ],
)
def test_tenant_is_read_where_the_policy_says(
    source: TenantSource, headers: dict[str, str], expected: str | None
) -> None:
    """Nothing stands in for a source that is not there."""
    assert expected == tenant_of(policy(source=source), headers)


def test_api_key_is_never_shown() -> None:
    """The tenant of a key is a digest, one for each key."""
    one = tenant_of(policy(source=API_KEY), {"authorization": "Bearer secret-one"})
    two = tenant_of(policy(source=API_KEY), {"x-api-key": "secret-two"})

    assert one is not None
    assert one.startswith(API_KEY_TENANT_PREFIX)
    assert "secret" not in one
    assert one != two


def test_session_is_read_from_the_header() -> None:
    """An empty header is no session."""
    assert "s1" == session_of(policy(), {"x-session-id": "s1"})
    assert None is session_of(policy(), {"x-session-id": ""})
    assert None is session_of(policy(), {})


def test_older_policy_has_precedence() -> None:
    """Of policies in each other's way the first stands, and one that only the second excluded stands, too."""
    first = Policy(name="first", pool="p", match=Match(models=("a",)))
    second = Policy(name="second", pool="p", match=Match(models=("a", "b")))
    third = Policy(name="third", pool="p", match=Match(models=("b",)))
    refused = settle([first, second, third])

    assert {"default/second"} == set(refused)
    assert "default/first" in refused["default/second"].value
    assert {} == settle([])
