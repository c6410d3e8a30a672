"""A pool's change against a StatefulSet controller in miniature: it ends, one engine at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sternpost_core.pool import parse_pool
from sternpost_fakes.policies import SMALLEST_POOL, changed
from sternpost_operator.engines import Reuse, Said
from sternpost_operator.pool_decide import PoolObserved, decide_pool
from sternpost_operator.pool_render import TEMPLATE_ANNOTATION
from sternpost_operator.resources import BUDGETS, Object

ROUNDS_MAX = 400


@dataclass(slots=True)
class Pod:
    """One pod: the template that it was made from, and how long until it is ready, and then warm."""

    template: str
    starts: int
    warms: int

    def tick(self) -> None:
        """Let time pass."""
        if self.starts:
            self.starts -= 1
        elif self.warms:
            self.warms -= 1

    @property
    def serves(self) -> bool:
        """Whether it is ready and warm."""
        return self.starts == self.warms == 0


@dataclass(slots=True)
class Cluster:
    """Does what the server and its controllers would do with what the operator applies."""

    delays: list[int]
    children: dict[str, Object] = field(default_factory=dict)
    pods: list[Pod] = field(default_factory=list)
    generation: int = 0
    seen: int = 0
    status: dict[str, Any] = field(default_factory=dict)
    now: float = 1_800_000_000.0

    def delay(self) -> int:
        """Return the next delay, over and over."""
        self.delays.append(self.delays.pop(0))
        return self.delays[-1]

    @property
    def template(self) -> str:
        """The template that is applied."""
        annotation: str = self.children["StatefulSet"]["metadata"]["annotations"][TEMPLATE_ANNOTATION]
        return annotation

    def operate(self, value: dict[str, Any]) -> None:
        """Have the operator look once, and carry its plan out."""
        observed = PoolObserved(
            pool=parse_pool(value),
            uid="uid",
            generation=1,
            children=self._children(),
            pods=[self._pod(number, pod) for number, pod in enumerate(self.pods)],
            said={f"small-{number}": self._said(pod) for number, pod in enumerate(self.pods)},
            budgets=BUDGETS,
        )
        plan = decide_pool(observed, self.status, self.now)
        for apply in plan.applies:
            self.children[apply.resource.kind] = apply.value
            self.generation += apply.resource.kind == "StatefulSet"
        self.status = dict(plan.status)

    def control(self) -> None:
        """Have the StatefulSet's controller work for a moment: at most one pod is replaced, from the top."""
        spec = self.children["StatefulSet"]["spec"]
        partition = spec["updateStrategy"]["rollingUpdate"]["partition"]
        while len(self.pods) < spec["replicas"]:
            self.pods.append(Pod(self.template, self.delay(), self.delay()))
        del self.pods[spec["replicas"] :]
        self.seen = self.generation
        for number in range(len(self.pods) - 1, partition - 1, -1):
            if self.pods[number].template != self.template:
                self.pods[number] = Pod(self.template, self.delay(), self.delay())
                return
            if self.pods[number].starts:
                return

    def tick(self) -> None:
        """Let time pass."""
        self.now += 1
        for pod in self.pods:
            pod.tick()

    def _children(self) -> dict[str, Object]:
        found = dict(self.children)
        if "StatefulSet" in found:
            value = found["StatefulSet"]
            metadata = {**value["metadata"], "generation": self.generation}
            status = {"observedGeneration": self.seen, "updateRevision": self.template}
            found["StatefulSet"] = {**value, "metadata": metadata, "status": status}
        return found

    def _pod(self, number: int, pod: Pod) -> Object:
        ready = "False" if pod.starts else "True"
        return {
            "metadata": {"name": f"small-{number}", "labels": {"controller-revision-hash": pod.template}},
            "status": {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": ready}]},
        }

    def _said(self, pod: Pod) -> Said:
        return Said(Reuse.UNKNOWN if pod.starts or pod.warms else Reuse.READY)


def settle(cluster: Cluster, value: dict[str, Any], *, at_least: int) -> int:
    """Run until nothing changes any more; return the rounds, and hold that so many serve all the time."""
    for rounds in range(ROUNDS_MAX):
        cluster.operate(value)
        cluster.control()
        assert sum(pod.serves for pod in cluster.pods) >= at_least
        cluster.tick()
        is_new = all(pod.template == cluster.template and pod.serves for pod in cluster.pods)
        if (
            is_new
            and cluster.status["partition"] == 0
            and cluster.status["updatedReplicas"] == len(cluster.pods)
        ):
            return rounds
    raise AssertionError("the change does not end")


@settings(max_examples=60)
@given(st.integers(1, 5), st.lists(st.integers(0, 4), min_size=1, max_size=5), st.booleans())
def test_change_ends_and_takes_one_engine_at_a_time(replicas: int, delays: list[int], scales: bool) -> None:
    """Whatever engines need to start and to get warm, and even if the pool grows in between."""
    pool = changed(SMALLEST_POOL, "spec.engine.replicas", replicas)
    cluster = Cluster(delays)
    settle(cluster, pool, at_least=0)
    cluster.operate(pool)

    other = changed(pool, "spec.engine.model", "other")
    if scales:
        other = changed(other, "spec.engine.replicas", replicas + 2)
    settle(cluster, other, at_least=replicas - 1)

    assert 1 == cluster.status["epoch"]
