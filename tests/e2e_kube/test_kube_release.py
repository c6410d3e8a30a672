"""
The whole of it: the chart by real Helm, its pods under their own accounts, policies by kubectl, and chats.

Chats are sent by OpenAI's own client; only the engines have no model. The figures come from a real
Prometheus, by the operator's own queries.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import httpx
import pytest

from sternpost_core.rollout import BUCKETS, bucket_of
from sternpost_operator.segments import CONTENT_ID_DIGITS
from sternpost_running.chart_pods import account_token
from sternpost_running.chat_load import Asked, ChatLoad, Stream, ask, running_load
from sternpost_running.custom_resources import Resources, is_ready
from sternpost_running.fake_engine import READ_DELAY, READ_ERROR, READ_FAILURE, SALT_HEADER
from sternpost_running.kubelet import FakeKubelet
from sternpost_running.kubernetes import Cluster, wait_for
from sternpost_running.prometheus import Target, running_prometheus
from sternpost_running.release import NAME, Release, running_release

pytestmark = [pytest.mark.kube, pytest.mark.timeout(600)]

NAMESPACE = "release"
TENANT = "acme"
OUTAGE_SECONDS = float(os.environ.get("STERNPOST_OUTAGE_SECONDS", "6"))
"""For how long there is no API server; five minutes are for a run by hand."""

ROLLOUT_SECONDS_MAX = 240.0
ARRIVAL_SECONDS_MAX = 10.0
POOLS: Mapping[str, list[dict[str, str]]] = {
    "good": [],
    "slow": [{"name": READ_DELAY, "value": "0.3"}],
    "failing": [{"name": READ_FAILURE, "value": "4"}],
    "wrong": [{"name": READ_ERROR, "value": "yes"}],
}
"""Pools by name, and what is wrong with the suffix reads of their engines."""

ENOUGH_REQUESTS = 240
"""Of the canary, before a step may end: more than a comparison of the arms needs."""

BAD: Mapping[str, tuple[str, str]] = {
    "slow": ("slow", "ttft"),
    "failing": ("failing", "errors"),
    "wrong": ("wrong", "demotions of tails whose shadow replays disagree"),
}
"""Policies whose canary is worse: the pool, and what the decision says."""


@pytest.fixture(scope="module")
def release(
    cluster: Cluster, kubelet: FakeKubelet, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Release]:
    """Install the chart, and have engines for its gateways."""
    folder = tmp_path_factory.mktemp("release")
    with running_release(cluster, kubelet, folder, NAMESPACE) as running:
        resources = Resources(cluster, NAMESPACE)
        for name, env in POOLS.items():
            resources.pool(name, replicas=2 if name == "good" else 1, env=env)
        for name in POOLS:
            resources.wait_for("EnginePool", name, is_ready, f"the pool {name} is ready")
        running.wait_until_it_runs()
        yield running


@pytest.fixture
def resources(release: Release) -> Resources:
    """Return the custom resources of the release's namespace, where its pools are."""
    return Resources(release.cluster, NAMESPACE)


@pytest.fixture(scope="module")
def prometheus(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a Prometheus that scrapes the gateways; return its URL."""
    targets = [Target(url.removeprefix("http://"), {}) for url in release.gateways()]
    with running_prometheus(tmp_path_factory.mktemp("prometheus"), [], targets) as running:
        yield str(running.client.base_url)


@pytest.fixture(scope="module")
def rollouts(release: Release, prometheus: str) -> Iterator[ChatLoad]:
    """Begin all rollouts at once, with people who chat: each takes its minutes, and none waits for others."""
    resources = Resources(release.cluster, NAMESPACE)
    for name, url in (("good", prometheus), ("silent", prometheus), ("blind", None)):
        apply_policy(resources, name, "good", url, steps=[1, 50, 100], min_requests=3)
    for name, (pool, _) in BAD.items():
        shadow = {"sampleRate": 1 if name == "wrong" else 0}
        steps = [50, 100]
        apply_policy(
            resources, name, pool, prometheus, steps=steps, min_requests=ENOUGH_REQUESTS, shadow=shadow
        )
    streams = [Stream("good", sessions("good", [1, 100, 1, 30]), 0.3, TENANT)]
    streams += [Stream(name, sessions(name, [10, 90]), 0.05, TENANT) for name in ("slow", "failing")] * 6
    streams += [Stream("wrong", sessions("wrong", [10, 90]), 0.3, TENANT)]
    with running_load(release.gateways, *streams) as load:
        yield load


def apply_policy(
    resources: Resources,
    name: str,
    pool: str,
    prometheus: str | None,
    *,
    steps: list[int],
    min_requests: int,
    **more: Any,
) -> None:
    """Apply a policy for the model of its own name that rolls out as fast as its figures allow."""
    analysis = {"analysis": {"prometheus": {"url": prometheus}}} if prometheus else {}
    rollout = {"steps": steps, "minDuration": "1s", "minRequests": min_requests, "minSessions": 1, **analysis}
    spec = {"rollout": rollout, "tenancy": {"tenantFrom": {"header": "x-tenant-id"}}, **more}
    resources.policy(name, match={"models": [name]}, poolRef={"name": pool}, **spec)


def sessions(policy: str, percents: Sequence[int]) -> list[str]:
    """Return a session for each percentage: one whose bucket is in that percent of all buckets."""
    found = []
    for percent, salt in zip(percents, itertools.count()):
        wanted = range((percent - 1) * BUCKETS // 100, percent * BUCKETS // 100)
        names = (f"session-{salt}-{number}" for number in itertools.count())
        found.append(next(name for name in names if _bucket(policy, name) in wanted))
    return found


def _bucket(policy: str, session: str) -> int:
    return bucket_of(f"{NAMESPACE}/{policy}", f"{TENANT!r} {session!r}".encode())


def in_phase(*phases: str) -> Callable[[Mapping[str, Any]], bool]:
    """Return whether a status is in one of some phases."""
    return lambda status: status.get("phase") in phases


def has_weight(weight: int) -> Callable[[Mapping[str, Any]], bool]:
    """Return whether a status has just this weight."""
    return lambda status: status.get("weight") == weight


def test_helms_own_test_passes(release: Release) -> None:
    """Its pod asks a gateway through the service, with the token of the chart's secret."""
    outcome = release.helm.test(NAME, timeout=60)

    assert "deployed" == outcome["release"]["status"], outcome


@pytest.mark.parametrize("component", ["gateway", "operator"])
def test_an_account_may_read_no_secret(release: Release, component: str) -> None:
    """The pods act as the chart's accounts, and those may not what they need not."""
    token = account_token(release.cluster, NAMESPACE, f"{NAME}-{component}")
    with httpx.Client(base_url=release.cluster.url, verify=False, trust_env=False) as client:
        headers = {"authorization": f"Bearer {token}"}
        own = client.get("/apis/sternpost.dev/v1alpha1/cachepolicies", headers=headers)
        secrets = client.get(f"/api/v1/namespaces/{NAMESPACE}/secrets", headers=headers)

    assert (200, 403) == (own.status_code, secrets.status_code)
    assert f"system:serviceaccount:{NAMESPACE}:{NAME}-{component}" in secrets.json()["message"]


def test_a_canary_that_is_worth_it_reaches_everybody(resources: Resources, rollouts: ChatLoad) -> None:
    """From one percent to all, by figures of real chats."""
    status = resources.wait_for(
        "CachePolicy", "good", in_phase("Complete", "Aborted"), "it is decided", ROLLOUT_SECONDS_MAX
    )

    assert ("Complete", 100, 100) == (status["phase"], status["weight"], status["readWeight"]), status
    assert [1, 50, 100] == [decision["weight"] for decision in status["decisions"]]
    figures = {figure["name"]: figure for figure in status["decisions"][-1]["figures"]}
    assert figures["reused_share"]["canary"] > 0.5 > figures["reused_share"]["control"]
    assert 0 == rollouts.failed["good"], rollouts.failures


@pytest.mark.parametrize(
    ("name", "reason"),
    [("silent", "an arm has no requests"), ("blind", "says where figures are")],
    ids=["no requests", "no Prometheus"],
)
def test_without_data_a_canary_is_held(
    resources: Resources, rollouts: ChatLoad, name: str, reason: str
) -> None:
    """It stays at its step, and says why."""
    status = resources.wait_for("CachePolicy", name, in_phase("Holding"), "it is held")

    assert (1, "Start") == (status["weight"], status["decisions"][-1]["action"])
    assert reason in resources.condition("CachePolicy", name, "Progressing")[2]


def test_a_kill_counts_at_once_and_comes_back_by_a_ramp(
    release: Release, resources: Resources, rollouts: ChatLoad
) -> None:
    """Both gateways obey, no chat fails, and reads begin again with the first step."""
    resources.wait_for("CachePolicy", "good", in_phase("Complete"), "it is complete", ROLLOUT_SECONDS_MAX)
    switch = {
        "apiVersion": "sternpost.dev/v1alpha1",
        "kind": "CacheKillSwitch",
        "metadata": {"name": NAMESPACE},
        "spec": {
            "level": "NoSuffixReads",
            "selector": {"policies": [f"{NAMESPACE}/good"]},
            "reason": "drill",
        },
    }
    gateway = release.gateways()[0]
    before = ask(gateway, "good")
    release.cluster.apply(switch)
    release.cluster.wait(
        lambda: release.levels(f"{NAMESPACE}/good") == ["NoSuffixReads"] * 2, "both obey", ARRIVAL_SECONDS_MAX
    )
    killed = ask(gateway, "good")
    resources.wait_for("CachePolicy", "good", in_phase("Killed"), "the status says so")
    at = f"/apis/sternpost.dev/v1alpha1/cachekillswitches/{NAMESPACE}"
    release.cluster.wait(
        lambda: release.cluster.get(at).get("status", {}).get("obeying") == 2, "two are said"
    )
    release.cluster.kubectl("delete", "cachekillswitch", NAMESPACE)
    status = resources.wait_for("CachePolicy", "good", in_phase("Progressing"), "it comes back")

    assert ("hit", "off") == (before.reason, killed.reason)
    assert (100, 1, "Unkill") == (status["weight"], status["readWeight"], status["decisions"][-1]["action"])
    assert 0 == rollouts.failed["good"], rollouts.failures


def test_both_gateways_and_the_status_name_versions_alike(
    release: Release, resources: Resources, rollouts: ChatLoad
) -> None:
    """Each gateway counts by itself what it sees; the operator gives each content one number."""
    status = resources.wait_for("CachePolicy", "good", lambda status: status.get("segments"), "versions")
    named = {(one["segment"], one["version"], one["contentId"]) for one in status["segments"]}
    wait_for(lambda: all(named <= _named(release, url) for url in release.gateways()), "all say the same")

    assert {"prefix", "tail"} == {segment for segment, *_ in named}
    assert all(_named(release, url) == named for url in release.gateways())


def _named(release: Release, url: str) -> set[tuple[str, str, str]]:
    """Return segment, version and the beginning of the content id of what a gateway has seen."""
    told = release.client.get(f"{url}/sternpost/v1/templates").json()["policies"]
    (versions,) = (one["versions"] for one in told if one["policy"] == f"{NAMESPACE}/good")
    return {
        (segment, one["version"], one["contentId"][:CONTENT_ID_DIGITS])
        for segment, seen in versions.items()
        for one in seen
    }


def test_one_tenants_kv_is_not_anothers(release: Release, resources: Resources) -> None:
    """All gateways give a tenant the same salt, nobody else's, and no client can choose it."""
    apply_everywhere(resources, "tenants")
    urls = release.gateways()
    wait_for(lambda: ask(urls[0], "tenants", tenant="acme").reason == "hit", "acme's tail is built")
    acme = {salt_of(ask(url, "tenants", tenant="acme")) for url in urls}
    (stolen,) = acme
    globex = {
        salt_of(ask(url, "tenants", tenant="globex", extra_body={"cache_salt": stolen})) for url in urls
    }

    assert (2, 1, 1) == (len(urls), len(acme), len(globex))
    assert all(acme | globex) and not acme & globex


def salt_of(asked: Asked) -> str:
    """Return the salt that has reached the engine."""
    return asked.headers[SALT_HEADER]


def apply_everywhere(resources: Resources, name: str) -> None:
    """Apply a policy, and have it promoted to all without waiting for figures."""
    apply_policy(resources, name, "good", None, steps=[100], min_requests=0)
    resources.wait_for("CachePolicy", name, lambda status: status.get("readWeight") == 100, "it is for all")


def test_a_pod_that_is_replaced_costs_no_chat(release: Release, resources: Resources) -> None:
    """The gateways stop using it at once, and use the one that takes its place."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/good-0"
    before = release.cluster.get(path)["status"]["podIP"]
    streams = [Stream("replaced", [f"session-{number}"], 0.05) for number in range(4)]
    apply_everywhere(resources, "replaced")
    with running_load(release.gateways, *streams) as load:
        release.cluster.wait(lambda: load.answered["replaced"] >= 20, "people chat")
        release.cluster.kubectl("delete", "-n", NAMESPACE, "pod", "good-0")
        release.cluster.wait(lambda: _address(release, path, before) is not None, "another pod is there")
        address = _address(release, path, before)
        release.cluster.wait(
            lambda: all(_serves(details, address) for details in release.details()), "both gateways use it"
        )

    assert [] == load.failures


def _address(release: Release, path: str, before: str) -> str | None:
    found = release.cluster.get(path).get("status", {}).get("podIP")
    return found if found != before else None


def _serves(details: Mapping[str, Any], address: str | None) -> bool:
    return f"{address}:" in json.dumps(details.get("engines", [])) and bool(details.get("ready"))


@pytest.mark.parametrize(
    ("name", "reason"), [(name, reason) for name, (_, reason) in BAD.items()], ids=[*BAD]
)
def test_a_canary_that_is_worse_stops_by_itself(
    resources: Resources, rollouts: ChatLoad, name: str, reason: str
) -> None:
    """Reads end; prompts and routing stay as they are, so that nothing turns cold."""
    status = resources.wait_for(
        "CachePolicy", name, in_phase("Complete", "Aborted"), "it is decided", ROLLOUT_SECONDS_MAX
    )
    rollouts.end(name)
    decision = status["decisions"][-1]

    assert ("Aborted", 50, 0) == (status["phase"], status["weight"], status["readWeight"]), status
    assert "Abort" == decision["action"] and reason in decision["reason"], decision
    assert decision["figures"]
    assert "Abort" in resources.events(name)


def test_without_an_operator_everything_is_served(release: Release, resources: Resources) -> None:
    """It is dead for the whole of it: chats, a new policy, a kill, and an engine that goes and comes."""
    apply_everywhere(resources, "alone")
    release.kill("operator")
    full = f"{NAMESPACE}/alone"
    with running_load(release.gateways, Stream("alone", ["a", "b"], 0.05)) as load:
        release.cluster.wait(lambda: load.answered["alone"] >= 20, "people chat")
        release.cluster.apply(_with_level(resources.get("CachePolicy", "alone"), "NoSuffixReads"))
        release.cluster.wait(
            lambda: release.levels(full) == ["NoSuffixReads"] * 2, "both obey", ARRIVAL_SECONDS_MAX
        )
        release.cluster.kubectl("delete", "-n", NAMESPACE, "pod", "good-1")
        seen = load.answered["alone"]
        release.cluster.wait(lambda: load.answered["alone"] >= seen + 20, "people go on")
    assert [] == load.failures
    release.replace("operator")
    resources.wait_for("CachePolicy", "alone", in_phase("Killed"), "the next operator takes note")


def _with_level(policy: Mapping[str, Any], level: str) -> dict[str, Any]:
    metadata = {key: policy["metadata"][key] for key in ("name", "namespace")}
    spec = {**policy["spec"], "killLevel": level}
    return {"apiVersion": policy["apiVersion"], "kind": policy["kind"], "metadata": metadata, "spec": spec}


def test_a_second_operator_by_mistake_decides_nothing_twice(release: Release, resources: Resources) -> None:
    """Each decision is written once, whichever of the two was faster."""
    words = ("scale", "-n", NAMESPACE, "deployment", f"{NAME}-operator")
    release.cluster.kubectl(*words, "--replicas=2")
    try:
        release.wait_until_it_runs()
        apply_policy(resources, "twice", "good", None, steps=[1, 5, 10, 100], min_requests=0)
        for weight in (1, 5, 10):
            resources.wait_for("CachePolicy", "twice", has_weight(weight), f"{weight}%")
            resources.annotate("twice", f"promote:{weight}")
        status = resources.wait_for("CachePolicy", "twice", in_phase("Complete"), "it is complete")
    finally:
        release.cluster.kubectl(*words, "--replicas=1")
        release.wait_until_it_runs()

    assert [1, 5, 10, 100] == [decision["weight"] for decision in status["decisions"]]
    assert "lacks the right" not in release.log("operator")


def test_an_outage_of_the_api_server_costs_no_chat(release: Release, resources: Resources) -> None:
    """
    Gateways go on with what they have, obey a kill by their own door, and hear news afterwards.

    Within the outage one gateway and the operator are started again: the one serves by what it has on disk,
    the other waits, and decides nothing anew when the server is back.
    """
    apply_everywhere(resources, "outage")
    decided = resources.status("CachePolicy", "outage")["decisions"]
    gateways, full = release.gateways(), f"{NAMESPACE}/outage"
    (operator,), restarted = release.pods("operator"), release.pods("gateway")[0]
    back = next(url for url in gateways if f"{restarted['status']['podIP']}:" in url)
    others = [url for url in gateways if url != back]
    people = (Stream("outage", [f"s{number}"], 0.1) for number in range(4))
    with running_load(lambda: others, *people) as load:
        release.cluster.wait(lambda: load.answered["outage"] >= 20, "people chat")
        with release.cluster.down():
            time.sleep(OUTAGE_SECONDS / 2)
            assert kill_at_each(release, gateways, full) <= ARRIVAL_SECONDS_MAX
            release.restart(operator)
            release.restart(restarted)
            wait_for(lambda: is_ready_at(release, back), "the gateway has started again")
            first = ask(back, "outage")
            time.sleep(OUTAGE_SECONDS / 2)
            wait_for(lambda: release.is_alive(operator), "the operator lives on")
            levels, details = release.levels_at(gateways, full), release.details_at(gateways)
        release.cluster.apply(_with_level(resources.get("CachePolicy", "outage"), "NewEpoch"))
        wait_for(lambda: release.levels(full) == ["NewEpoch"] * 2, "news arrive")
        status = resources.wait_for("CachePolicy", "outage", in_phase("Killed"), "the operator takes note")
    print(
        f"{load.answered['outage']} chats, {len(load.failures)} failed, {OUTAGE_SECONDS:g} s without a server"
    )

    assert [] == load.failures
    assert (full, 0) == (first.headers["x-sternpost-policy"], first.report["suffix_tokens"])
    assert ["NoSuffixReads"] * 2 == levels
    assert all("API server" in json.dumps(one["faults"]) and one["ready"] for one in details), details
    assert [*decided, "Kill"] == [*status["decisions"][:-1], status["decisions"][-1]["action"]]


def is_ready_at(release: Release, url: str) -> bool:
    """Tell whether a gateway says that it is ready."""
    with suppress(httpx.TransportError):
        return release.client.get(f"{url}/readyz").is_success
    return False


def kill_at_each(release: Release, gateways: Sequence[str], policy: str) -> float:
    """Kill a policy at each gateway itself; return the seconds that it took until all said that they obey."""
    started = time.monotonic()
    order = {"level": "NoSuffixReads", "policy": policy, "reason": "the API server is away"}
    for url in gateways:
        answer = release.client.post(f"{url}/sternpost/v1/kill", json=order, headers=release.admin_headers())
        assert answer.is_success and "NoSuffixReads" in answer.text, answer.text
    return time.monotonic() - started
