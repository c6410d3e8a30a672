"""The EnginePool: the engines that serve a policy, either adopted as they run or run by the operator."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from sternpost_core.reader import (
    DNS_NAME_FORM,
    Metadata,
    ObjectReader,
    is_dns_name,
    object_mapping,
    read_object,
)

POOL_KIND: Final = "EnginePool"

PORT_DEFAULT: Final = 8000
"""Where vLLM listens unless it is told otherwise."""

REPLICAS_MAX: Final = 1024
LABELS_MAX: Final = 32
LABEL_LENGTH_MAX: Final = 63
ARGUMENTS_MAX: Final = 256
ARGUMENT_LENGTH_MAX: Final = 4096
RESOURCES_MAX: Final = 32
IMAGE_LENGTH_MAX: Final = 512

_QUANTITY: Final = re.compile(
    r"\+?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3}|[numkMGTPE]|[KMGTPE]i)?"
)
_QUANTITY_FORM: Final = 'a quantity such as 1, "500m" or "16Gi"'
_QUANTITY_LENGTH_MAX: Final = 64


class CredentialsMode(StrEnum):
    """What the gateway does with a request's credentials on the way to the engine."""

    REPLACE = "Replace"
    FORWARD = "Forward"
    NONE = "None"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """Pods that run already: those with all of `match_labels`, reached at `port`."""

    match_labels: Mapping[str, str]
    port: int = PORT_DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What the operator runs; `limits` and `requests` are Kubernetes quantities as text."""

    model: str
    image: str
    replicas: int = 1
    args: tuple[str, ...] = ()
    limits: Mapping[str, str] = field(default_factory=dict)
    requests: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """How the engine is authenticated to; `secret`, the name of a Secret, goes with `Replace` only."""

    mode: CredentialsMode = CredentialsMode.NONE
    secret: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePool:
    """
    One pool of equal engines, either `Adopted` or run by the operator as an `Engine`.

    `pool_fraction` is the suffix store's share of the memory that is free after the weights.
    """

    name: str
    engines: Adopted | Engine
    namespace: str = "default"
    pool_fraction: float = 0.2
    credentials: Credentials = Credentials()

    @property
    def full_name(self) -> str:
        """The name that is unique in a cluster: "namespace/name"."""
        return f"{self.namespace}/{self.name}"


def parse_pool(mapping: object) -> EnginePool:
    """
    Read an EnginePool object.

    Raises:
        PolicyError: with every fault.
    """
    return read_object(mapping, POOL_KIND, _read)


def pool_to_mapping(pool: EnginePool) -> dict[str, Any]:
    """Return the object that `parse_pool` reads as `pool`."""
    credentials: dict[str, Any] = {"mode": pool.credentials.mode.value}
    if pool.credentials.secret:
        credentials["secretRef"] = {"name": pool.credentials.secret}
    spec = {
        **_engines_to_mapping(pool.engines),
        "suffixStore": {"poolFraction": pool.pool_fraction},
        "credentials": credentials,
    }
    return object_mapping(POOL_KIND, {"name": pool.name, "namespace": pool.namespace}, spec)


def _engines_to_mapping(engines: Adopted | Engine) -> dict[str, Any]:
    if isinstance(engines, Adopted):
        return {"selector": {"matchLabels": dict(engines.match_labels)}, "port": engines.port}
    resources = {"limits": dict(engines.limits), "requests": dict(engines.requests)}
    return {
        "engine": {
            "model": engines.model,
            "image": engines.image,
            "replicas": engines.replicas,
            "args": list(engines.args),
            "resources": resources,
        }
    }


def _read(metadata: Metadata, spec: ObjectReader) -> EnginePool:
    engines = _read_engines(spec)
    store = spec.child("suffixStore")
    pool_fraction = store.number("poolFraction", 0.2, 0, 1)
    store.close()
    return EnginePool(
        name=metadata.name,
        namespace=metadata.namespace,
        engines=engines,
        pool_fraction=pool_fraction,
        credentials=_read_credentials(spec.child("credentials")),
    )


def _read_engines(spec: ObjectReader) -> Adopted | Engine:
    adopts, runs = spec.asked("selector"), spec.asked("engine")
    port = spec.integer("port", PORT_DEFAULT, 1, 65535)
    if spec.readable and adopts == runs:
        spec.fault("engine", "both" if runs else "neither", "exactly one of engine, selector")
    if runs and spec.has("port"):
        spec.fault("port", str(port), f"no port beside engine, which listens on {PORT_DEFAULT}")
    engine = _read_engine(spec.child("engine")) if runs else None
    adopted = Adopted(match_labels=_read_selector(spec.child("selector")), port=port) if adopts else None
    return engine or adopted or Adopted(match_labels={})


def _read_selector(reader: ObjectReader) -> dict[str, str]:
    labels = reader.strings("matchLabels", count_max=LABELS_MAX, length_max=LABEL_LENGTH_MAX)
    if not labels and reader.readable:
        # An empty selector would adopt every pod of the namespace.
        reader.fault("matchLabels", "no labels", "at least one label")
    reader.close()
    return labels


def _read_engine(reader: ObjectReader) -> Engine:
    resources = reader.child("resources")
    engine = Engine(
        model=reader.text("model"),
        image=reader.text("image", length_max=IMAGE_LENGTH_MAX),
        replicas=reader.integer("replicas", 1, 0, REPLICAS_MAX),
        args=_read_arguments(reader),
        limits=_read_quantities(resources, "limits"),
        requests=_read_quantities(resources, "requests"),
    )
    resources.close()
    reader.close()
    return engine


def _read_arguments(reader: ObjectReader) -> tuple[str, ...]:
    arguments: list[str] = []
    for path, element in reader.items("args", ARGUMENTS_MAX):
        if isinstance(element, str) and len(element) <= ARGUMENT_LENGTH_MAX:
            arguments.append(element)
        else:
            reader.fault_at(path, element, f"a string of at most {ARGUMENT_LENGTH_MAX} characters")
    return tuple(arguments)


def _read_quantities(resources: ObjectReader, key: str) -> dict[str, str]:
    below = resources.child(key)
    quantities = {name: below.value(name, _quantity, _QUANTITY_FORM) for name in below.keys(RESOURCES_MAX)}
    below.close()
    return {name: quantity for name, quantity in quantities.items() if quantity is not None}


def _quantity(found: object) -> str | None:
    if isinstance(found, bool) or not isinstance(found, int | float | str):
        return None
    text = str(found)
    return text if len(text) <= _QUANTITY_LENGTH_MAX and _QUANTITY.fullmatch(text) else None


def _read_credentials(reader: ObjectReader) -> Credentials:
    mode = reader.choice("mode", CredentialsMode, CredentialsMode.NONE)
    secret = None
    if reader.asked("secretRef"):
        below = reader.child("secretRef")
        secret = below.text("name", accepts=is_dns_name, allowed=DNS_NAME_FORM)
        below.close()
    if mode is CredentialsMode.REPLACE and secret is None:
        reader.fault("secretRef", "nothing", "the name of a Secret in mode Replace")
    if mode is not CredentialsMode.REPLACE and secret is not None:
        reader.fault("secretRef", "a Secret", f"none in mode {mode.value}")
    reader.close()
    return Credentials(mode=mode, secret=secret)
