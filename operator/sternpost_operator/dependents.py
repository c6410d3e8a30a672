"""Which objects have to be looked at when another one has changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sternpost_operator.resources import POLICIES, POOL_LABEL, POOLS, SWITCHES, Key, Object
from sternpost_operator.store import Store


def dependents(store: Store, key: Key, value: Object | None) -> Iterator[Key]:
    """Yield the keys that depend on an object, itself aside; `value` is None for one that is gone."""
    if key.kind == POOLS.kind:
        yield from (
            Key(POLICIES.kind, key.namespace, policy["metadata"]["name"])
            for policy in store.of_kind(POLICIES.kind)
            if policy["metadata"]["namespace"] == key.namespace and _pool_name(policy) == key.name
        )
    elif key.kind == SWITCHES.kind:
        yield from policy_keys(store)
    elif key.kind != POLICIES.kind and value is not None:
        pool = value["metadata"].get("labels", {}).get(POOL_LABEL)
        if pool:
            yield Key(POOLS.kind, key.namespace, pool)


def pool_keys(key: Key, *editions: Object | None) -> Iterator[Key]:
    """Yield the keys of the pools that editions of a policy name, each once."""
    names = {_pool_name(edition) for edition in editions if edition is not None}
    yield from (Key(POOLS.kind, key.namespace, name) for name in sorted(names) if name)


def policy_keys(store: Store) -> Iterator[Key]:
    """Yield the keys of all policies."""
    for policy in store.of_kind(POLICIES.kind):
        yield Key(POLICIES.kind, policy["metadata"]["namespace"], policy["metadata"]["name"])


def _pool_name(policy: Object) -> str:
    """Return the name of the pool that a policy names, an empty one where it names none."""
    spec = policy.get("spec")
    reference = spec.get("poolRef") if isinstance(spec, Mapping) else None
    name = reference.get("name") if isinstance(reference, Mapping) else None
    return name if isinstance(name, str) else ""
