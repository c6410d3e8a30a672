"""
The adapter to kopf: watches and reconnects are kopf's, decisions are not.

Handlers of plain events leave no trace on objects: no finalizer that could keep a namespace from going, and
no annotation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import kopf

from sternpost_operator.kube import connect
from sternpost_operator.resources import OWN, PODS, STATEFUL_SETS, Resource
from sternpost_operator.watcher import MANAGED, Watcher

INACTIVITY_SECONDS: Final = 70
"""A watch that says nothing for so long is dead: the server sends bookmarks once a minute."""

SERVER_SECONDS: Final = 300
CONNECT_SECONDS: Final = 5
REQUEST_SECONDS: Final = 10
BACKOFF_SECONDS: Final = (0.5, 1, 2, 4)
HANDLER_BACKOFF_SECONDS: Final = 5

WATCHED: Final = (*OWN, STATEFUL_SETS, PODS)
LABELLED: Final = (STATEFUL_SETS, PODS)
"""Of these only what the operator renders is watched: the server selects by label."""


def make_registry(watcher: Watcher, kubeconfig: str | None) -> kopf.OperatorRegistry:
    """Return the handlers: one for each kind, and the login."""
    registry = kopf.OperatorRegistry()
    for resource in WATCHED:
        handler = _event_handler(watcher, resource)
        kopf.on.event(resource.group, resource.version, resource.plural, registry=registry)(handler)
    kopf.on.login(registry=registry)(_login_handler(kubeconfig))
    return registry


def make_settings() -> kopf.OperatorSettings:
    """Return kopf's settings: everything is bounded by seconds, where its defaults are minutes."""
    settings = kopf.OperatorSettings()
    settings.watching.inactivity_timeout = INACTIVITY_SECONDS
    settings.watching.server_timeout = SERVER_SECONDS
    settings.watching.connect_timeout = CONNECT_SECONDS
    for resource in LABELLED:
        settings.watching.label_selectors[resource.group, resource.version, resource.plural] = MANAGED
    settings.networking.request_timeout = REQUEST_SECONDS
    settings.networking.connect_timeout = CONNECT_SECONDS
    settings.networking.error_backoffs = BACKOFF_SECONDS
    settings.networking.enforce_retry_after = True
    settings.execution.default_backoff = HANDLER_BACKOFF_SECONDS
    # The operator writes its own events, about decisions; kopf's are about handlers.
    settings.posting.enabled = False
    settings.peering.standalone = True
    return settings


async def watch(watcher: Watcher, kubeconfig: str | None, stop: asyncio.Event) -> None:
    """Watch until told to stop, by the event or by a signal."""
    await kopf.operator(
        registry=make_registry(watcher, kubeconfig),
        settings=make_settings(),
        standalone=True,
        clusterwide=True,
        stop_flag=stop,
    )


def _event_handler(watcher: Watcher, resource: Resource) -> Callable[..., None]:
    async def handle(event: Any, **_: Any) -> None:
        watcher.saw(resource, event["type"], event["object"])

    # Each handler needs a name of its own, which kopf shows in its log.
    handle.__qualname__ = handle.__name__ = f"saw_{resource.plural}"
    return handle  # type: ignore[return-value]


def _login_handler(kubeconfig: str | None) -> Callable[..., Any]:
    async def log_in(**_: Any) -> kopf.ConnectionInfo:
        # Asked again whenever credentials are refused: tokens of service accounts are renewed on disk.
        api = await connect(kubeconfig)
        configuration = api.configuration
        token = str(configuration.api_key.get("BearerToken", "")).removeprefix("Bearer ")
        await api.close()
        return kopf.ConnectionInfo(
            server=configuration.host,
            ca_path=configuration.ssl_ca_cert,
            insecure=not configuration.verify_ssl,
            token=token or None,
            certificate_path=configuration.cert_file,
            private_key_path=configuration.key_file,
        )

    return log_in
