"""The operator's flags, rights and handlers."""

import argparse
import asyncio
import re
from pathlib import Path
from typing import Any

import kopf
import pytest
from prometheus_client import CollectorRegistry

from sternpost_fakes.clock import FakeClock
from sternpost_fakes.kube_api import FakeApi
from sternpost_fakes.policies import SMALLEST
from sternpost_operator.app import OperatorSettings, run_beside
from sternpost_operator.command import COMMAND, GATEWAY_LABELS, read_settings
from sternpost_operator.framework import WATCHED, make_registry, make_settings
from sternpost_operator.metrics import OperatorMetrics
from sternpost_operator.permissions import missing_rights, policy_rules, single_rights
from sternpost_operator.resources import BUDGETS, Key, Object, Resource
from sternpost_operator.status_size import STATUS_BYTES_MAX, fit, size_of
from sternpost_operator.store import Store
from sternpost_operator.watcher import Watcher
from sternpost_operator.work_queue import WorkQueue


def parsed(*words: str) -> OperatorSettings:
    """Return the settings of a command line."""
    parser = argparse.ArgumentParser()
    COMMAND.add_arguments(parser)
    return read_settings(parser.parse_args(words), "/etc/kubeconfig")


def test_every_flag_reaches_the_settings() -> None:
    """And without flags there are defaults."""
    words = [
        "--kubeconfig",
        "k",
        "--prometheus-url",
        "http://p",
        "--gateway-labels",
        "a=b",
        "--gateway-port",
        "1",
    ]
    words += ["--health-port", "0", "--metrics-port", "2", "--workers", "3", "--separate-namespaces"]
    words += ["--gateway-certificate", "tls.crt"]

    assert OperatorSettings(
        kubeconfig="k",
        prometheus_url="http://p",
        gateway_labels="a=b",
        gateway_port=1,
        health_port=0,
        metrics_port=2,
        workers=3,
        separate_namespaces=True,
        gateway_certificate=Path("tls.crt"),
    ) == parsed(*words)
    assert OperatorSettings(kubeconfig="/etc/kubeconfig", gateway_labels=GATEWAY_LABELS) == parsed()


@pytest.mark.parametrize(
    "words",
    [
        ("--gateway-port", "0"),
        ("--metrics-port", "65536"),
        ("--health-port", "x"),
        ("--workers", "0"),
        ("--workers", "²"),
        ("--prometheus-url", "prometheus:9090"),
    ],
    ids=lambda words: "=".join(words),
)
def test_wrong_flag_names_what_is_allowed(words: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """The flag, the value and what would do."""
    with pytest.raises(SystemExit):
        parsed(*words)
    said = capsys.readouterr().err

    assert re.search(rf"{words[0]}: '?{re.escape(words[1])}'? is not allowed; allowed: \S", said)


def test_rights_are_rules_of_a_role() -> None:
    """No wildcard, no secrets, no deletion: the least that works."""
    rules = policy_rules()

    assert all("*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]] for rule in rules)
    assert not {"secrets", "configmaps"} & {resource for rule in rules for resource in rule["resources"]}
    assert not {"delete", "deletecollection"} & {verb for rule in rules for verb in rule["verbs"]}
    assert ("apps", "statefulsets", "patch") in set(single_rights())


async def test_missing_rights_are_named() -> None:
    """Each right is asked about by itself."""

    class Reviewer(FakeApi):
        async def create(self, resource: Resource, value: Object) -> Object:
            asked = value["spec"]["resourceAttributes"]
            return {"status": {"allowed": (asked["verb"], asked["resource"]) != ("patch", "services")}}

    assert ["patch services"] == await missing_rights(Reviewer())


def test_kopf_is_bounded_by_seconds() -> None:
    """Nothing of its defaults of minutes is left in the way of a change."""
    settings = make_settings()

    assert (70, 300, 5) == (
        settings.watching.inactivity_timeout,
        settings.watching.server_timeout,
        settings.watching.connect_timeout,
    )
    assert (10, (0.5, 1, 2, 4), True) == (
        settings.networking.request_timeout,
        settings.networking.error_backoffs,
        settings.networking.enforce_retry_after,
    )
    assert (5, False, True) == (
        settings.execution.default_backoff,
        settings.posting.enabled,
        settings.peering.standalone,
    )


async def test_handlers_feed_the_watcher_and_leave_no_trace() -> None:
    """There is one for each kind, and none of the kind that needs a finalizer or an annotation."""
    store, clock = Store(), FakeClock()
    metrics = OperatorMetrics(CollectorRegistry())
    registry = make_registry(
        Watcher(FakeApi(), store, WorkQueue(clock), clock, metrics, BUDGETS, asyncio.Event()), None
    )
    handlers: Any = registry._watching.get_all_handlers()
    value = {**SMALLEST, "metadata": {"name": "a", "namespace": "x"}}
    for handler in handlers:
        if handler.id == "saw_cachepolicies":
            await handler.fn(event={"type": "ADDED", "object": value}, retry=0)

    assert {f"saw_{resource.plural}" for resource in WATCHED} == {handler.id for handler in handlers}
    assert [] == [*registry._changing.get_all_handlers(), *registry._spawning.get_all_handlers()]
    assert value == store.get(Key("CachePolicy", "x", "a"))
    assert isinstance(registry, kopf.OperatorRegistry)


async def test_loops_end_with_the_main_thing() -> None:
    """Whoever stops the operator stops all of it."""
    ended: list[str] = []

    async def loop() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("loop")

    async def main() -> None:
        await asyncio.sleep(0)
        ended.append("main")

    await run_beside(main(), [loop(), loop()])

    assert ["main", "loop", "loop"] == ended


async def test_loop_that_fails_ends_everything() -> None:
    """Kubernetes starts an operator again that has ended, not one that only seems to work."""

    async def fail() -> None:
        raise KeyError("unforeseen")

    with pytest.raises(ExceptionGroup) as caught:
        await run_beside(asyncio.sleep(3600), [fail()])

    assert isinstance(caught.value.exceptions[0], KeyError)


def test_status_is_cut_from_the_front_of_its_lists() -> None:
    """The newest stay."""
    status = {"phase": "x", "decisions": [{"reason": "y" * 1000, "number": number} for number in range(40)]}
    fitting = fit(status, "decisions")

    assert size_of(fitting) <= STATUS_BYTES_MAX < size_of(status)
    assert (39, "x") == (fitting["decisions"][-1]["number"], fitting["phase"])
