"""Which policies are accepted: those that can be read, and that stand in no older one's way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sternpost_core.errors import Fault, PolicyError
from sternpost_core.policy import Policy
from sternpost_core.policy_match import settle
from sternpost_core.policy_parse import parse
from sternpost_operator.resources import POLICIES, Object
from sternpost_operator.store import Store

Edition = tuple[str, int]
"""An object's uid and generation: what was written, whatever became of its status since."""


class Admission:
    """
    Reads each edition of a policy once, and compares all policies whenever one of them has changed.

    Policies of different namespaces are not compared where namespaces are `separate`: each gateway sees one.
    """

    def __init__(self, store: Store, *, separate: bool = False) -> None:
        self._store = store
        self._separate = separate
        self._read: dict[Edition, Policy | tuple[Fault, ...]] = {}
        self._refused: Mapping[str, Fault] = {}
        self._compared: frozenset[Edition] = frozenset()

    def judge(self, value: Object) -> tuple[Policy | None, tuple[Fault, ...]]:
        """Return a policy that is accepted, or the faults of one that is not."""
        self._compare()
        read = self._edition(value)
        if not isinstance(read, Policy):
            return None, read
        fault = self._refused.get(read.full_name)
        return (
            (read, ())
            if fault is None
            else (None, (Fault("spec.match.priority", fault.value, fault.allowed),))
        )

    def _edition(self, value: Object) -> Policy | tuple[Fault, ...]:
        edition = edition_of(value)
        if edition not in self._read:
            self._read[edition] = _parse(value)
        return self._read[edition]

    def _compare(self) -> None:
        values = list(self._store.of_kind(POLICIES.kind))
        editions = frozenset(edition_of(value) for value in values)
        if editions == self._compared:
            return
        # The oldest has precedence, so that a new policy never takes requests away from one that works.
        oldest_first = sorted(values, key=_age)
        read = [self._edition(value) for value in oldest_first]
        self._refused = self._settle([policy for policy in read if isinstance(policy, Policy)])
        self._read = {edition: known for edition, known in self._read.items() if edition in editions}
        self._compared = editions

    def _settle(self, policies: Sequence[Policy]) -> Mapping[str, Fault]:
        if not self._separate:
            return settle(policies)
        namespaces = {policy.namespace for policy in policies}
        together = [[one for one in policies if one.namespace == namespace] for namespace in namespaces]
        return {name: fault for group in together for name, fault in settle(group).items()}


def edition_of(value: Object) -> Edition:
    """Return which edition of which object this is."""
    metadata = value["metadata"]
    return str(metadata.get("uid", "")), int(metadata.get("generation", 0))


def _age(value: Object) -> tuple[str, str, str]:
    metadata = value["metadata"]
    return metadata.get("creationTimestamp", ""), metadata.get("namespace", ""), metadata["name"]


def _parse(value: Object) -> Policy | tuple[Fault, ...]:
    try:
        return parse(value)
    except PolicyError as error:
        return error.faults
