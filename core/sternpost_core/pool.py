"""The EnginePool: the engines that serve a policy, either adopted as they run or run by the operator."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from sternpost_core.duration import format_duration
from sternpost_core.engine_pod import QUANTITY_FORM, PodSettings, pod_to_mapping, quantity, read_pod
from sternpost_core.reader import (
    DNS_NAME_FORM,
    Metadata,
    ObjectReader,
    is_dns_name,
    object_mapping,
    read_object,
)
from sternpost_core.text import one_of

POOL_KIND: Final = "EnginePool"

PORT_DEFAULT: Final = 8000
"""Where vLLM listens unless it is told otherwise."""

REPLICAS_MAX: Final = 1024
LABELS_MAX: Final = 32
LABEL_LENGTH_MAX: Final = 63
ARGUMENTS_MAX: Final = 128
ARGUMENT_LENGTH_MAX: Final = 2048
RESOURCES_MAX: Final = 32
IMAGE_LENGTH_MAX: Final = 512
MODEL_LENGTH_MAX: Final = 1024
WARM_SECONDS_MAX: Final = 24 * 3600

LORAS_MAX: Final = 64

CREDENTIALS_KEY: Final = "api-key"
"""The key of the credentials' Secret that holds what engines ask for and the gateway sends."""

RESERVED_ARGUMENTS: Final = (
    "api-key",
    "enable-lora",
    "enable-prompt-tokens-details",
    "host",
    "kv-transfer-config",
    "lora-modules",
    "model",
    "port",
    "revision",
    "scheduler-cls",
    "served-model-name",
)
"""The flags that the operator gives by itself, without dashes in front."""

_RESERVED: Final = re.compile(rf"--(?:{'|'.join(RESERVED_ARGUMENTS)})(?:=.*)?", re.DOTALL)
_ARGUMENT_FORM: Final = f"a string of at most {ARGUMENT_LENGTH_MAX} characters"
_RESERVED_FORM: Final = f"none of the operator's own flags: {one_of(RESERVED_ARGUMENTS)}"
# A model's name becomes an argument of its own: a dash in front would make it a flag.
_WORD: Final = re.compile(r"[!-,.-~][!-~]*")
_WORD_FORM: Final = f"1 to {MODEL_LENGTH_MAX} ASCII characters, without spaces, no dash in front"
_LORA_NAME: Final = re.compile(r"[A-Za-z0-9][-._A-Za-z0-9]{0,127}")
_LORA_NAME_FORM: Final = "letters, digits, '-', '.' and '_', at most 128"


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
class LoraAdapter:
    """A LoRA adapter that is served under `name`; `path` is a folder in the pod, or a repository's name."""

    name: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """
    What the operator runs; `limits` and `requests` are Kubernetes quantities as text.

    `served_model_name`, where it is empty, is `model`. A changed pod has `warm_seconds` to become warm before
    the next one is changed.
    """

    model: str
    image: str
    revision: str = ""
    served_model_name: str = ""
    lora_adapters: tuple[LoraAdapter, ...] = ()
    replicas: int = 1
    args: tuple[str, ...] = ()
    limits: Mapping[str, str] = field(default_factory=dict)
    requests: Mapping[str, str] = field(default_factory=dict)
    pod: PodSettings = field(default_factory=PodSettings)
    warm_seconds: int = 600


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
    return {"engine": _engine_to_mapping(engines)}


def _engine_to_mapping(engine: Engine) -> dict[str, Any]:
    loras = [{"name": lora.name, "path": lora.path} for lora in engine.lora_adapters]
    texts = {"revision": engine.revision, "servedModelName": engine.served_model_name}
    return {
        "model": engine.model,
        "image": engine.image,
        **{key: text for key, text in texts.items() if text},
        "loraAdapters": loras,
        "replicas": engine.replicas,
        "args": list(engine.args),
        "resources": {"limits": dict(engine.limits), "requests": dict(engine.requests)},
        "update": {"warmTimeout": format_duration(engine.warm_seconds)},
        **pod_to_mapping(engine.pod),
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
    update = reader.child("update")
    engine = Engine(
        model=reader.text("model", length_max=MODEL_LENGTH_MAX, accepts=_is_word, allowed=_WORD_FORM),
        image=reader.text("image", length_max=IMAGE_LENGTH_MAX),
        revision=_read_word(reader, "revision"),
        served_model_name=_read_word(reader, "servedModelName"),
        lora_adapters=_read_loras(reader),
        replicas=reader.integer("replicas", 1, 0, REPLICAS_MAX),
        args=_read_arguments(reader),
        limits=_read_quantities(resources, "limits"),
        requests=_read_quantities(resources, "requests"),
        pod=read_pod(reader),
        warm_seconds=update.duration("warmTimeout", 600, WARM_SECONDS_MAX),
    )
    resources.close()
    update.close()
    reader.close()
    return engine


def _read_word(reader: ObjectReader, key: str) -> str:
    if not reader.asked(key):
        return ""
    return reader.text(key, length_max=MODEL_LENGTH_MAX, accepts=_is_word, allowed=_WORD_FORM)


def _read_loras(reader: ObjectReader) -> tuple[LoraAdapter, ...]:
    adapters: list[LoraAdapter] = []
    for path, element in reader.items("loraAdapters", LORAS_MAX):
        below = ObjectReader(element, path, reader.faults)
        name = below.text("name", accepts=_is_lora_name, allowed=_LORA_NAME_FORM)
        adapter = LoraAdapter(name=name, path=_read_lora_path(below))
        below.close()
        if name and name in [earlier.name for earlier in adapters]:
            below.fault("name", f"{name!r} again", "each name once")
        adapters.append(adapter)
    return tuple(adapters)


def _read_lora_path(reader: ObjectReader) -> str:
    return reader.text("path", length_max=MODEL_LENGTH_MAX, accepts=_is_word, allowed=_WORD_FORM)


def _read_arguments(reader: ObjectReader) -> tuple[str, ...]:
    arguments: list[str] = []
    for path, element in reader.items("args", ARGUMENTS_MAX):
        if not isinstance(element, str) or len(element) > ARGUMENT_LENGTH_MAX:
            reader.fault_at(path, element, _ARGUMENT_FORM)
        elif _RESERVED.fullmatch(element.replace("_", "-")):
            reader.fault_at(path, element, _RESERVED_FORM)
        else:
            arguments.append(element)
    return tuple(arguments)


def _is_word(text: str) -> bool:
    return _WORD.fullmatch(text) is not None


def _is_lora_name(text: str) -> bool:
    return _LORA_NAME.fullmatch(text) is not None


def _read_quantities(resources: ObjectReader, key: str) -> dict[str, str]:
    below = resources.child(key)
    quantities = {name: below.value(name, quantity, QUANTITY_FORM) for name in below.keys(RESOURCES_MAX)}
    below.close()
    return {name: found for name, found in quantities.items() if found is not None}


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
