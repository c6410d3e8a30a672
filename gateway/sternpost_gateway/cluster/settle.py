"""
From objects as the API server has them to a configuration that can go live.

One bad object never takes another down, nor itself: the last good form of it stays, and its faults are told.
Only a higher kill level is taken even from an object with faults, since whoever raises it must be heard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, TypeVar

from sternpost_core.errors import Fault, PolicyError
from sternpost_core.kill import CacheKillSwitch, KillLevel, parse_kill_switch
from sternpost_core.policy import Policy
from sternpost_core.policy_match import PolicySet, build_policy_set
from sternpost_core.policy_parse import parse
from sternpost_core.pool import EnginePool, parse_pool
from sternpost_core.rollout import FOR_ALL, Rollout, rollout_of
from sternpost_gateway.cluster.mirror import Store
from sternpost_gateway.cluster.resources import Key, Object
from sternpost_gateway.config import Config

T = TypeVar("T")

Good = Mapping[Key, T]
"""The last good form of each object that there is."""

LEVELS: Final = {level.value: level for level in KillLevel}


@dataclass(frozen=True, slots=True)
class Stores:
    """The three collections at one moment."""

    policies: Store = field(default_factory=dict)
    pools: Store = field(default_factory=dict)
    switches: Store = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settled:
    """What goes live, what was wrong on the way, and the good forms that the next time falls back to."""

    config: Config = field(default_factory=Config)
    faults: tuple[Fault, ...] = ()
    policies: Good[Policy] = field(default_factory=dict)
    pools: Good[EnginePool] = field(default_factory=dict)
    switches: Good[CacheKillSwitch] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Read(Generic[T]):
    """The good forms of one collection, and the faults of the others."""

    good: Good[T]
    faults: tuple[Fault, ...]


def settle(stores: Stores, before: Settled, undecided: Rollout = FOR_ALL) -> Settled:
    """
    Decide what goes live, given what was live before.

    `undecided` is how far a policy is rolled out whose status does not say: for all, unless somebody decides.
    """
    policies = read_all(stores.policies, before.policies, parse)
    pools = read_all(stores.pools, before.pools, parse_pool)
    switches = read_all(stores.switches, before.switches, parse_kill_switch)
    good, conflicts = compatible(policies.good, before.policies)
    heard = tuple(with_level(policy, stores.policies.get(key)) for key, policy in good.items())
    config = Config(
        PolicySet(build_policy_set(heard).policies),
        tuple(pools.good.values()),
        tuple(switches.good.values()),
        {
            policy.full_name: rollout_of(stores.policies[key].get("status"), undecided)
            for key, policy in good.items()
        },
    )
    faults = policies.faults + pools.faults + switches.faults + conflicts
    return Settled(config, faults, good, pools.good, switches.good)


def read_all(store: Store, before: Good[T], read: Callable[[object], T]) -> Read[T]:
    """Read each object; where one is wrong, its last good form stands in, if it has had one."""
    good: dict[Key, T] = {}
    faults: list[Fault] = []
    for key, item in sorted(store.items()):
        try:
            good[key] = read(item)
        except PolicyError as error:
            faults += (
                replace(fault, path=f"{item.get('kind')} {key}: {fault.path}") for fault in error.faults
            )
            if key in before:
                good[key] = before[key]
    return Read(good, tuple(faults))


def compatible(wanted: Good[Policy], before: Good[Policy]) -> tuple[Good[Policy], tuple[Fault, ...]]:
    """
    Return policies that may stand side by side.

    Those that stay as they were come first; each new or changed one is added if it conflicts with none, else
    it stays in the form it had, or out.
    """
    good = {key: policy for key, policy in wanted.items() if before.get(key) == policy}
    faults: list[Fault] = []
    for key, policy in wanted.items():
        if key in good:
            continue
        try:
            build_policy_set([*good.values(), policy])
            good[key] = policy
        except PolicyError as error:
            faults += error.faults
            if key in before and _fits(before[key], good.values()):
                good[key] = before[key]
    return dict(sorted(good.items())), tuple(faults)


def with_level(policy: Policy, item: Object | None) -> Policy:
    """Return the policy with the kill level that its object says now, if that is higher."""
    level = raw_level(item)
    return policy if level is None or level <= policy.kill_level else replace(policy, kill_level=level)


def raw_level(item: Object | None) -> KillLevel | None:
    """Return `spec.killLevel` if it is there and a level, else None."""
    spec: Any = item.get("spec") if item is not None else None
    value = spec.get("killLevel") if isinstance(spec, Mapping) else None
    return LEVELS.get(value) if isinstance(value, str) else None


def _fits(policy: Policy, others: Iterable[Policy]) -> bool:
    try:
        build_policy_set([*others, policy])
    except PolicyError:
        return False
    return True
