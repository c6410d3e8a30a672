"""The Helm chart renders, by real Helm, for every kind of values, and refuses values that mean nothing."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python as helm
import pytest
import yaml

from sternpost_fakes.chart_values import COMBINATIONS
from sternpost_gateway import command as gateway
from sternpost_gateway import command_kill as kill
from sternpost_operator import command as operator
from sternpost_operator.health import LIVE_PATH, READY_PATH
from sternpost_operator.permissions import policy_rules

CHART = Path(__file__).parents[2] / "charts" / "sternpost"

ALL = [pytest.param(values, id=name) for name, values in COMBINATIONS.items()]


def objects(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what the chart renders to."""
    files = rendered_files(values)
    return [item for path, text in files.items() if path.endswith(".yaml") for item in _documents(text)]


def rendered_files(values: dict[str, Any]) -> dict[str, str]:
    """Return what each template renders to, by its path."""
    rendered: dict[str, str] = helm.Chart.load(CHART).render(values, name="sp", namespace="serving")
    return rendered


def _documents(text: str) -> Iterator[dict[str, Any]]:
    yield from (item for item in yaml.safe_load_all(text) if item)


def pods(rendered: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the specs of all pods that would run."""
    templates = [item["spec"]["template"]["spec"] for item in rendered if item["kind"] == "Deployment"]
    return templates + [item["spec"] for item in rendered if item["kind"] == "Pod"]


@pytest.mark.parametrize("values", ALL)
def test_lint_has_no_complaint(values: dict[str, Any]) -> None:
    """Neither errors nor warnings; the only remark is that there is no icon."""
    messages = helm.lint(CHART, values, strict=True)["messages"]

    assert ["icon is recommended"] == [message["error"] for message in messages]


@pytest.mark.parametrize("values", ALL)
def test_every_object_is_named_and_labelled(values: dict[str, Any]) -> None:
    """Each object can be found by the release, and no two have one name."""
    rendered = objects(values)
    identities = [(item["kind"], item["metadata"]["name"]) for item in rendered]

    assert len(set(identities)) == len(identities)
    assert {"sp"} == {item["metadata"]["labels"]["app.kubernetes.io/instance"] for item in rendered}


@pytest.mark.parametrize("values", ALL)
def test_pods_meet_the_restricted_standard(values: dict[str, Any]) -> None:
    """What Kubernetes' restricted pod security standard asks for, and a read-only root on top."""
    for pod in pods(objects(values)):
        assert (True, "RuntimeDefault") == (
            pod["securityContext"]["runAsNonRoot"],
            pod["securityContext"]["seccompProfile"]["type"],
        )
        for container in pod["containers"]:
            security = container["securityContext"]
            assert (False, True, ["ALL"]) == (
                security["allowPrivilegeEscalation"],
                security["readOnlyRootFilesystem"],
                security["capabilities"]["drop"],
            )


@pytest.mark.parametrize("values", ALL)
def test_every_volume_is_mounted_and_every_mount_has_its_volume(values: dict[str, Any]) -> None:
    """A mount without a volume is refused by the cluster only when it is too late."""
    for pod in pods(objects(values)):
        volumes = {volume["name"] for volume in pod.get("volumes", ())}
        mounts = {mount["name"] for item in pod["containers"] for mount in item.get("volumeMounts", ())}
        assert volumes == mounts


def test_a_gateway_may_only_read() -> None:
    """Whoever takes over a gateway can change nothing in the cluster."""
    rules = [
        rule
        for item in objects({"namespace": "agents"}) + objects({})
        if item["kind"] in ("ClusterRole", "Role")
        and item["metadata"]["labels"]["app.kubernetes.io/component"] == "gateway"
        for rule in item["rules"]
    ]

    assert {"get", "list", "watch"} == {verb for rule in rules for verb in rule["verbs"]}
    assert {"pods", "cachepolicies", "enginepools", "cachekillswitches"} == {
        resource for rule in rules for resource in rule["resources"]
    }


def test_the_operator_may_do_what_it_needs_and_nothing_else() -> None:
    """Its role is its own list of permissions."""
    role = next(
        item
        for item in objects({})
        if item["kind"] == "ClusterRole"
        and item["metadata"]["labels"]["app.kubernetes.io/component"] == "operator"
    )

    assert policy_rules() == role["rules"]


def test_the_commands_in_the_pods_are_ones_that_exist() -> None:
    """Each container's arguments are understood by the program that it runs."""
    parser = argparse.ArgumentParser()
    subcommands = parser.add_subparsers(dest="command", required=True)
    gateway.COMMAND.add_arguments(subcommands.add_parser("gateway"))
    operator.COMMAND.add_arguments(subcommands.add_parser("operator"))
    kill.COMMAND.add_arguments(subcommands.add_parser("kill"))
    for values in COMBINATIONS.values():
        for pod in pods(objects(values)):
            for container in pod["containers"]:
                parser.parse_args(container["args"])


@pytest.mark.parametrize(
    "values", [{}, {"gateway": {"tls": {"existingSecret": "served"}}}], ids=["plain", "tls"]
)
def test_the_commands_in_the_notes_can_be_run(values: dict[str, Any]) -> None:
    """Whoever copies the kill from there, in an emergency, has no flag to find out about."""
    (notes,) = (text for path, text in rendered_files(values).items() if path.endswith("NOTES.txt"))
    parser = argparse.ArgumentParser()
    kill.COMMAND.add_arguments(parser.add_subparsers(required=True).add_parser("kill"))
    (line,) = (line.split("sternpost ", 1)[1] for line in notes.splitlines() if "sternpost kill" in line)
    parser.parse_args(shlex.split(line))

    assert "sp-gateway -o go-template='{{index .data \"token\" | base64decode}}' > admin.token" in notes
    assert f"{'https' if values else 'http'}://sp-gateway.serving.svc:80/v1" in notes


NAMED = "2024"
"""A name that YAML would read as a number; Kubernetes takes it for most objects."""

TEXT = "*.a: b #c"
"""What YAML would read as an alias, as a mapping and as a comment."""


def odd_values(name: str, text: str) -> dict[str, Any]:
    """Return values in which each name and each text is odd."""
    secret = {"existingSecret": name, "key": name}
    return {
        "namespace": name,
        "imagePullSecrets": [{"name": name}],
        "gateway": {
            "credentials": "replace",
            "adminToken": secret,
            "saltKey": secret,
            "engineKey": secret,
            "clientKeys": secret,
            "tls": {"existingSecret": name, "clientCaKey": name},
            "engineTls": {"existingSecret": name, "caKey": name, "serverName": text},
            "clientTokens": {
                "keysUrl": "https://login/#a #b",
                "issuer": text,
                "audience": text,
                "tenantClaim": text,
            },
            "poolSecrets": [{"namespace": name, "name": name}],
            "image": {"repository": name, "tag": name},
            "priorityClassName": name,
            "ingress": {"enabled": True, "className": name, "hosts": [{"host": text, "tlsSecret": name}]},
        },
        "operator": {"priorityClassName": name, "prometheusUrl": "http://prometheus/?a: b #c"},
        "monitoring": {
            "serviceMonitor": {"enabled": True},
            "prometheusRule": {"enabled": True},
            "dashboards": {"enabled": True, "label": name, "labelValue": name},
            "slos": [{"name": "on", "kind": "Availability", "objective": 0.9}],
        },
    }


def texts_at(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield every value that is no object and no list, with where it stands."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield from texts_at(below, f"{path}.{key}")
    elif isinstance(value, list):
        for number, below in enumerate(value):
            yield from texts_at(below, f"{path}[{number}]")
    else:
        yield path, value


def test_names_and_texts_arrive_as_they_are() -> None:
    """Whatever they look like to YAML: a wildcard host, a name of digits, a claim with a colon in it."""
    plain = objects(odd_values("name", "text"))
    odd = objects(odd_values(NAMED, TEXT))
    expected = [
        (path.replace("name", NAMED), value.replace("name", NAMED).replace("text", TEXT))
        for path, value in texts_at([_without_data(item) for item in plain])
        if isinstance(value, str) and ("name" in value or "text" in value)
    ]
    found = {
        path.replace("name", NAMED): value for path, value in texts_at([_without_data(item) for item in odd])
    }

    assert len(expected) > 50
    assert [] == [
        (path, value, found.get(path)) for path, value in expected if not _is_same(value, found.get(path))
    ]


def _without_data(item: dict[str, Any]) -> dict[str, Any]:
    """Return an object without what a ConfigMap holds, and rules without their queries."""
    return {key: value for key, value in item.items() if key not in ("data", "groups")}


def _is_same(expected: str, found: object) -> bool:
    # The word name is also part of names that stay, such as namespace.
    return isinstance(found, str) and found.replace("name", NAMED) == expected


def test_whom_the_chart_itself_has_call_gateways_may_do_so() -> None:
    """The operator and the pod of `helm test`, whatever clients there are."""
    rendered = objects(COMBINATIONS["policies"])
    labels = [
        item["spec"]["template"]["metadata"]["labels"]
        for item in rendered
        if item["kind"] == "Deployment" and item["metadata"]["name"].endswith("operator")
    ]
    labels += [item["metadata"]["labels"] for item in rendered if item["kind"] == "Pod"]
    (policy,) = (
        item
        for item in rendered
        if item["kind"] == "NetworkPolicy" and item["metadata"]["name"].endswith("gateway")
    )
    selectors = [
        peer["podSelector"]["matchLabels"]
        for peer in policy["spec"]["ingress"][0]["from"]
        if "podSelector" in peer
    ]

    assert 2 == len(labels)
    assert all(any(one.items() <= label.items() for one in selectors) for label in labels)


def test_gateways_with_tls_are_scraped_by_tls() -> None:
    """Without figures every rollout would hold, and no alert would fire."""
    monitored = {"monitoring": {"serviceMonitor": {"enabled": True}}}
    for secret, scheme in (("served", "https"), ("", None)):
        rendered = objects({**monitored, "gateway": {"tls": {"existingSecret": secret}}})
        (own,) = (
            item for item in rendered if item["kind"] == "PodMonitor" and item["metadata"]["name"] == "sp"
        )
        endpoints = {one["port"]: one.get("scheme") for one in own["spec"]["podMetricsEndpoints"]}

        assert {"http": scheme, "metrics": None} == endpoints


def test_in_one_namespace_a_gateway_sees_only_that_and_the_kill_switches() -> None:
    """The cluster role shrinks to what is cluster-scoped."""
    roles = {
        item["kind"]: item
        for item in objects({"namespace": "agents"})
        if item["metadata"]["labels"].get("app.kubernetes.io/component") == "gateway"
    }

    assert [["cachekillswitches"]] == [rule["resources"] for rule in roles["ClusterRole"]["rules"]]
    assert "agents" == roles["Role"]["metadata"]["namespace"]


@pytest.mark.parametrize(("namespace", "is_told"), [("", False), ("agents", True)], ids=["all", "one"])
def test_the_operator_knows_how_far_gateways_see(namespace: str, is_told: bool) -> None:
    """Where they see one namespace, a policy of another one is in nobody's way."""
    (arguments,) = (
        item["spec"]["template"]["spec"]["containers"][0]["args"]
        for item in objects({"namespace": namespace})
        if item["kind"] == "Deployment" and item["metadata"]["name"].endswith("operator")
    )

    assert is_told is ("--separate-namespaces" in arguments)


def test_a_gateway_reads_the_secrets_of_pools_by_name_alone() -> None:
    """No gateway may list Secrets, or read one that no pool names."""
    secret = {"namespace": "agents", "name": "vllm"}
    rules = [
        (item["metadata"]["namespace"], rule)
        for item in objects({"gateway": {"poolSecrets": [secret]}})
        if item["kind"] in ("Role", "ClusterRole") and "gateway" in item["metadata"]["name"]
        for rule in item["rules"]
        if "secrets" in rule["resources"]
    ]

    expected = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["vllm"], "verbs": ["get"]}
    assert [("agents", expected)] == rules


def test_a_gateway_with_tls_is_probed_by_tls() -> None:
    """Probes of plain HTTP would never find such a gateway ready."""
    for secret, scheme in (("served", "HTTPS"), ("", "HTTP")):
        rendered = objects({"gateway": {"tls": {"existingSecret": secret}}})
        container = next(pod for pod in pods(rendered) if "volumes" in pod)["containers"][0]
        probes = [container[kind]["httpGet"] for kind in ("livenessProbe", "readinessProbe", "startupProbe")]

        assert [scheme] * 3 == [probe["scheme"] for probe in probes]


def test_the_operator_is_probed_where_it_answers() -> None:
    """It lives without an API server, and is ready only with one: a server that is away restarts nobody."""
    (container,) = (
        item["spec"]["template"]["spec"]["containers"][0]
        for item in objects({})
        if item["kind"] == "Deployment" and item["metadata"]["name"].endswith("operator")
    )
    probes = {
        kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("liveness", "readiness", "startup")
    }

    assert {"liveness": LIVE_PATH, "readiness": READY_PATH, "startup": LIVE_PATH} == probes


def test_the_operator_meets_gateways_with_tls_by_their_certificate() -> None:
    """It is given the certificate of the same Secret, and not the key."""
    (spec,) = (
        item["spec"]["template"]["spec"]
        for item in objects({"gateway": {"tls": {"existingSecret": "served"}}})
        if item["kind"] == "Deployment" and item["metadata"]["name"].endswith("operator")
    )
    volume = next(one for one in spec["volumes"] if one["name"] == "gateway-tls")
    mount = next(one for one in spec["containers"][0]["volumeMounts"] if one["name"] == "gateway-tls")

    assert {"secretName": "served", "items": [{"key": "tls.crt", "path": "tls.crt"}]} == volume["secret"]
    assert f"--gateway-certificate={mount['mountPath']}/tls.crt" in spec["containers"][0]["args"]


def test_draining_fits_into_the_grace_period() -> None:
    """Kubernetes must not kill a gateway whose streams may still finish."""
    rendered = objects({"gateway": {"drain": {"delaySeconds": 7, "seconds": 100}}})
    gateway = next(pod for pod in pods(rendered) if pod["containers"][0]["name"] == "gateway")

    assert gateway["terminationGracePeriodSeconds"] > 107


def test_only_engine_paths_leave_the_cluster() -> None:
    """The kill endpoint and the metrics are not for the internet."""
    rendered = objects(COMBINATIONS["ingress"]) + objects(COMBINATIONS["route"])
    ingress = next(item for item in rendered if item["kind"] == "Ingress")
    route = next(item for item in rendered if item["kind"] == "HTTPRoute")

    assert ["/v1/"] == [path["path"] for path in ingress["spec"]["rules"][0]["http"]["paths"]]
    assert "/v1/" == route["spec"]["rules"][0]["matches"][0]["path"]["value"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        pytest.param({"gatway": {}}, "gatway", id="unknown key"),
        pytest.param({"gateway": {"replicas": "two"}}, "replicas", id="wrong type"),
        pytest.param({"gateway": {"replicas": -1}}, "replicas", id="out of range"),
        pytest.param({"gateway": {"credentials": "Forward"}}, "credentials", id="not of the list"),
        pytest.param({"gateway": {"credentials": "replace"}}, "existingSecret", id="replace without a key"),
        pytest.param({"gateway": {"engines": ["vllm:8000"]}}, "engines", id="no URL"),
        pytest.param({"gateway": {"ingress": {"enabled": True}}}, "hosts", id="ingress without a host"),
        pytest.param(
            {"gateway": {"httpRoute": {"enabled": True}}}, "parentRefs", id="route without a parent"
        ),
        pytest.param({"namespace": "No Such"}, "namespace", id="no namespace name"),
        pytest.param({"monitoring": {"serviceMonitor": {"interval": "often"}}}, "interval", id="no duration"),
    ],
)
def test_values_that_mean_nothing_are_refused_by_name(values: dict[str, Any], said: str) -> None:
    """The error names the key."""
    with pytest.raises(helm.HelmError, match=said):
        objects(values)


def test_the_charts_custom_resources_are_the_projects() -> None:
    """`make docs` copies them. Helm does not apply them: it would never touch them again."""
    ours = {file.name: file.read_text() for file in (CHART.parents[1] / "crds").glob("*.yaml")}

    assert ours == {file.name: file.read_text() for file in (CHART / "files" / "crds").glob("*.yaml")}


def test_every_default_is_in_the_schema() -> None:
    """The values file and the schema speak of the same keys."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())

    assert [] == list(_unknown(values, schema, ""))


def _unknown(values: dict[str, Any], schema: dict[str, Any], path: str) -> Iterator[str]:
    """Yield the keys that only one of the two knows."""
    known = schema.get("properties")
    if known is None:
        return
    yield from (f"{path}.{key}" for key in set(values) ^ (set(known) - {"global"}) if path != ".tests")
    for key in set(values) & set(known):
        if isinstance(values[key], dict) and known[key]["type"] == "object":
            yield from _unknown(values[key], known[key], f"{path}.{key}")
