"""
How the pods of an EnginePool are run: what Kubernetes is told beside model, image and arguments.

The names are Kubernetes' own. There is no `hostPath` volume: whoever may write an EnginePool need not be
allowed to read a node's disk.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeVar

from sternpost_core.duration import format_duration
from sternpost_core.errors import Fault
from sternpost_core.reader import (
    DNS_LABEL_FORM,
    DNS_NAME_FORM,
    ObjectReader,
    any_text,
    is_dns_label,
    is_dns_name,
)
from sternpost_core.text import one_of

ENVIRONMENT_MAX: Final = 64
VOLUMES_MAX: Final = 32
TOLERATIONS_MAX: Final = 32
SPREADS_MAX: Final = 8
SECRETS_MAX: Final = 8
LABELS_MAX: Final = 32
LABEL_KEY_LENGTH_MAX: Final = 316
LABEL_LENGTH_MAX: Final = 63
PATH_LENGTH_MAX: Final = 1024
VALUE_LENGTH_MAX: Final = 4096
SKEW_MAX: Final = 100
SECONDS_MAX: Final = 24 * 3600
QUANTITY_LENGTH_MAX: Final = 64

RESERVED_ENVIRONMENT: Final = ("VLLM_API_KEY", "VLLM_PLUGINS")
"""What the operator sets itself: the credentials, and the plugin's name."""

QUANTITY_FORM: Final = 'a quantity such as 1, "500m" or "16Gi"'
"""How an error describes what is allowed."""

_QUANTITY: Final = re.compile(
    r"\+?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3}|[numkMGTPE]|[KMGTPE]i)?"
)
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_SECRET_KEY: Final = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_LABEL_KEY: Final = re.compile(r"(?:[a-z0-9][-.a-z0-9]*/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")
_KEY_FORM: Final = "a label's key, such as topology.kubernetes.io/zone"
_VARIABLE_FORM: Final = f"a variable's name, but not {one_of(RESERVED_ENVIRONMENT)}"
_VALUE_FORM: Final = f"a string of at most {VALUE_LENGTH_MAX} characters"
_LABEL_FORM: Final = f"a string of at most {LABEL_LENGTH_MAX} characters"
_MOUNT_PATH_FORM: Final = "an absolute path without ':'"

T = TypeVar("T")


class VolumeKind(StrEnum):
    """Where a volume's content comes from; the values are the keys of a volume."""

    CLAIM = "persistentVolumeClaim"
    CONFIG_MAP = "configMap"
    SECRET = "secret"
    EMPTY_DIR = "emptyDir"


class TolerationOperator(StrEnum):
    """How a toleration compares."""

    EQUAL = "Equal"
    EXISTS = "Exists"


class TaintEffect(StrEnum):
    """What a taint does to a pod that does not tolerate it."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class Unsatisfiable(StrEnum):
    """What happens to a pod that cannot be spread as wanted."""

    DO_NOT_SCHEDULE = "DoNotSchedule"
    SCHEDULE_ANYWAY = "ScheduleAnyway"


class PullPolicy(StrEnum):
    """When an image is pulled."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


SOURCE_KEYS: Final = {
    VolumeKind.CLAIM: "claimName",
    VolumeKind.CONFIG_MAP: "name",
    VolumeKind.SECRET: "secretName",
}
"""Under which key each kind of volume names its source; Kubernetes' own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """An environment variable: a value, or the `key` of a Secret named `secret`."""

    name: str
    value: str = ""
    secret: str | None = None
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A volume and where it is mounted; `source` names the claim, ConfigMap or Secret."""

    name: str
    mount_path: str
    kind: VolumeKind
    source: str = ""
    read_only: bool = False
    size_limit: str | None = None
    in_memory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """A taint that the pods put up with; without `key` every taint, without `effect` every effect."""

    key: str = ""
    operator: TolerationOperator = TolerationOperator.EQUAL
    value: str = ""
    effect: TaintEffect | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How evenly the pods lie over what `topology_key` tells apart."""

    topology_key: str
    max_skew: int = 1
    when_unsatisfiable: Unsatisfiable = Unsatisfiable.SCHEDULE_ANYWAY


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSettings:
    """Where engine pods run and what they are given; `shared_memory` is a quantity for /dev/shm."""

    env: tuple[Variable, ...] = ()
    volumes: tuple[Volume, ...] = ()
    shared_memory: str | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    topology_spread: tuple[Spread, ...] = ()
    service_account: str | None = None
    priority_class: str | None = None
    runtime_class: str | None = None
    pull_policy: PullPolicy = PullPolicy.IF_NOT_PRESENT
    pull_secrets: tuple[str, ...] = ()
    startup_seconds: int = 1800
    termination_seconds: int = 600


def quantity(found: object) -> str | None:
    """Return a Kubernetes quantity as text, or None where `found` is none."""
    if isinstance(found, bool) or not isinstance(found, int | float | str):
        return None
    text = str(found)
    return text if len(text) <= QUANTITY_LENGTH_MAX and _QUANTITY.fullmatch(text) else None


def read_pod(reader: ObjectReader) -> PodSettings:
    """Read the pod's keys of an engine; the caller closes `reader`."""
    defaults = PodSettings()
    return PodSettings(
        env=_read_each(reader, "env", ENVIRONMENT_MAX, _read_variable, lambda item: item.name),
        volumes=_read_each(reader, "volumes", VOLUMES_MAX, _read_volume, lambda item: item.name),
        shared_memory=_read_quantity(reader, "sharedMemory"),
        node_selector=_read_labels(reader, "nodeSelector"),
        tolerations=_read_each(reader, "tolerations", TOLERATIONS_MAX, _read_toleration),
        topology_spread=_read_each(
            reader, "topologySpread", SPREADS_MAX, _read_spread, lambda item: item.topology_key
        ),
        service_account=_read_name(reader, "serviceAccountName"),
        priority_class=_read_name(reader, "priorityClassName"),
        runtime_class=_read_name(reader, "runtimeClassName"),
        pull_policy=reader.choice("imagePullPolicy", PullPolicy, defaults.pull_policy),
        pull_secrets=_read_each(reader, "imagePullSecrets", SECRETS_MAX, _read_reference, str),
        startup_seconds=_read_seconds(reader, "startupTimeout", defaults.startup_seconds),
        termination_seconds=_read_seconds(reader, "terminationGracePeriod", defaults.termination_seconds),
    )


def pod_to_mapping(pod: PodSettings) -> dict[str, Any]:
    """Return the keys that `read_pod` reads as `pod`."""
    keys: dict[str, Any] = {
        "env": [_variable_to_mapping(variable) for variable in pod.env],
        "volumes": [_volume_to_mapping(volume) for volume in pod.volumes],
        "sharedMemory": pod.shared_memory,
        "nodeSelector": dict(pod.node_selector),
        "tolerations": [toleration_to_mapping(toleration) for toleration in pod.tolerations],
        "topologySpread": [_spread_to_mapping(spread) for spread in pod.topology_spread],
        "serviceAccountName": pod.service_account,
        "priorityClassName": pod.priority_class,
        "runtimeClassName": pod.runtime_class,
        "imagePullPolicy": pod.pull_policy.value,
        "imagePullSecrets": [{"name": name} for name in pod.pull_secrets],
        "startupTimeout": format_duration(pod.startup_seconds),
        "terminationGracePeriod": format_duration(pod.termination_seconds),
    }
    return {key: value for key, value in keys.items() if value not in (None, [], {})}


def toleration_to_mapping(toleration: Toleration) -> dict[str, Any]:
    """Return a toleration as Kubernetes has it, too."""
    effect = toleration.effect.value if toleration.effect else ""
    texts = {"key": toleration.key, "value": toleration.value, "effect": effect}
    return {"operator": toleration.operator.value, **{key: text for key, text in texts.items() if text}}


def _read_each(
    reader: ObjectReader,
    key: str,
    count_max: int,
    read: Callable[[ObjectReader], T],
    name: Callable[[T], str] | None = None,
) -> tuple[T, ...]:
    """Read a list of objects; where they have a `name`, each is there once."""
    values: list[T] = []
    names: set[str] = set()
    for path, element in reader.items(key, count_max):
        below = ObjectReader(element, path, reader.faults)
        value = read(below)
        below.close()
        values.append(value)
        if name is None or not name(value):
            continue
        if name(value) in names:
            reader.faults.append(Fault(path, f"{name(value)!r} again", "each once"))
        names.add(name(value))
    return tuple(values)


def _read_variable(reader: ObjectReader) -> Variable:
    name = reader.text("name", accepts=_is_variable, allowed=_VARIABLE_FORM)
    value = reader.text("value", "", length_max=VALUE_LENGTH_MAX, accepts=any_text, allowed=_VALUE_FORM)
    secret, key = None, ""
    if reader.asked("secretKeyRef"):
        below = reader.child("secretKeyRef")
        secret = below.text("name", accepts=is_dns_name, allowed=DNS_NAME_FORM)
        key = below.text("key", accepts=_is_secret_key, allowed="a key of a Secret")
        below.close()
    if reader.readable and reader.has("value") == reader.has("secretKeyRef"):
        found = "both" if reader.has("value") else "neither"
        reader.fault("value", found, "exactly one of value, secretKeyRef")
    return Variable(name=name, value=value, secret=secret, key=key)


def _variable_to_mapping(variable: Variable) -> dict[str, Any]:
    if variable.secret is None:
        return {"name": variable.name, "value": variable.value}
    return {"name": variable.name, "secretKeyRef": {"name": variable.secret, "key": variable.key}}


def _read_volume(reader: ObjectReader) -> Volume:
    name = reader.text("name", accepts=is_dns_label, allowed=DNS_LABEL_FORM)
    path = reader.text("mountPath", accepts=_is_mount_path, allowed=_MOUNT_PATH_FORM)
    read_only = reader.boolean("readOnly", False)
    given = [kind for kind in VolumeKind if reader.asked(kind)]
    if reader.readable and len(given) != 1:
        reader.fault("name", f"{len(given)} sources", f"exactly one of {one_of(VolumeKind)}")
    kind = given[0] if given else VolumeKind.EMPTY_DIR
    source, size_limit, in_memory = _read_source(reader.child(kind), kind)
    return Volume(
        name=name,
        mount_path=path,
        kind=kind,
        source=source,
        read_only=read_only,
        size_limit=size_limit,
        in_memory=in_memory,
    )


def _read_source(reader: ObjectReader, kind: VolumeKind) -> tuple[str, str | None, bool]:
    source, size_limit, in_memory = "", None, False
    if kind is VolumeKind.EMPTY_DIR:
        size_limit = _read_quantity(reader, "sizeLimit")
        in_memory = reader.boolean("inMemory", False)
    else:
        source = reader.text(SOURCE_KEYS[kind], accepts=is_dns_name, allowed=DNS_NAME_FORM)
    reader.close()
    return source, size_limit, in_memory


def _volume_to_mapping(volume: Volume) -> dict[str, Any]:
    if volume.kind is VolumeKind.EMPTY_DIR:
        limit = {"sizeLimit": volume.size_limit} if volume.size_limit else {}
        source: dict[str, Any] = {"inMemory": volume.in_memory, **limit}
    else:
        source = {SOURCE_KEYS[volume.kind]: volume.source}
    mounted = {"name": volume.name, "mountPath": volume.mount_path, "readOnly": volume.read_only}
    return {**mounted, volume.kind.value: source}


def _read_toleration(reader: ObjectReader) -> Toleration:
    key = reader.text("key", "", length_max=LABEL_KEY_LENGTH_MAX, accepts=_is_key_or_empty, allowed=_KEY_FORM)
    operator = reader.choice("operator", TolerationOperator, TolerationOperator.EQUAL)
    value = reader.text("value", "", length_max=LABEL_LENGTH_MAX, accepts=any_text, allowed=_LABEL_FORM)
    if operator is TolerationOperator.EXISTS and value:
        reader.fault("value", repr(value), "no value with operator Exists")
    if operator is TolerationOperator.EQUAL and reader.readable and not key:
        reader.fault("key", "no key", "a key, unless operator is Exists")
    return Toleration(
        key=key, operator=operator, value=value, effect=reader.optional_choice("effect", TaintEffect)
    )


def _read_spread(reader: ObjectReader) -> Spread:
    return Spread(
        topology_key=reader.text(
            "topologyKey", length_max=LABEL_KEY_LENGTH_MAX, accepts=_is_key, allowed=_KEY_FORM
        ),
        max_skew=reader.integer("maxSkew", 1, 1, SKEW_MAX),
        when_unsatisfiable=reader.choice("whenUnsatisfiable", Unsatisfiable, Unsatisfiable.SCHEDULE_ANYWAY),
    )


def _spread_to_mapping(spread: Spread) -> dict[str, Any]:
    return {
        "topologyKey": spread.topology_key,
        "maxSkew": spread.max_skew,
        "whenUnsatisfiable": spread.when_unsatisfiable.value,
    }


def _read_reference(reader: ObjectReader) -> str:
    return reader.text("name", accepts=is_dns_name, allowed=DNS_NAME_FORM)


def _read_name(reader: ObjectReader, key: str) -> str | None:
    if not reader.asked(key):
        return None
    return reader.text(key, accepts=is_dns_name, allowed=DNS_NAME_FORM)


def _read_quantity(reader: ObjectReader, key: str) -> str | None:
    return reader.value(key, quantity, QUANTITY_FORM) if reader.asked(key) else None


def _read_seconds(reader: ObjectReader, key: str, default: int) -> int:
    return reader.duration(key, default, SECONDS_MAX)


def _read_labels(reader: ObjectReader, key: str) -> dict[str, str]:
    labels = reader.strings(key, count_max=LABELS_MAX, length_max=LABEL_LENGTH_MAX)
    for name in labels:
        if not _is_key(name):
            reader.fault(f"{key}.{name}", "the key", _KEY_FORM)
    return labels


def _is_variable(text: str) -> bool:
    return _VARIABLE.fullmatch(text) is not None and text not in RESERVED_ENVIRONMENT


def _is_secret_key(text: str) -> bool:
    return _SECRET_KEY.fullmatch(text) is not None


def _is_mount_path(text: str) -> bool:
    return text.startswith("/") and len(text) <= PATH_LENGTH_MAX and ":" not in text


def _is_key(text: str) -> bool:
    return _LABEL_KEY.fullmatch(text) is not None


def _is_key_or_empty(text: str) -> bool:
    return not text or _is_key(text)
