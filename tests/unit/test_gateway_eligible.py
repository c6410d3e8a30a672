"""Which engines may serve a request at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from sternpost_core.policy_parse import parse
from sternpost_gateway.eligible import eligible
from sternpost_gateway.fleet import UNKNOWN, Engine, View

POLICY = parse(
    {
        "apiVersion": "sternpost.dev/v1alpha1",
        "kind": "CachePolicy",
        "metadata": {"name": "support", "namespace": "agents"},
        "spec": {"match": {"models": ["qwen"]}, "poolRef": {"name": "qwen"}},
    }
)


def view(name: str, pool: str = "", models: Sequence[str] = ()) -> View:
    """Return a ready engine."""
    info = replace(UNKNOWN, models=frozenset(models))
    return View(Engine(f"http://{name}", pool), True, 0, info)


HERE, THERE, ANYWHERE = "agents/qwen", "agents/llama", ""


@pytest.mark.parametrize(
    ("views", "expected"),
    [
        pytest.param([view("a", HERE), view("b", THERE)], "a", id="not another pool's"),
        pytest.param([view("a", ANYWHERE), view("b", HERE)], "ab", id="also one without a pool"),
        pytest.param([view("b", THERE)], "", id="nobody is better than a stranger"),
        pytest.param([view("a", HERE, ["qwen"]), view("b", HERE, ["llama"])], "a", id="with the model"),
        pytest.param([view("a", HERE, ["llama"]), view("b", HERE)], "b", id="with nothing known"),
        pytest.param([view("a", HERE, ["llama"]), view("b", HERE, ["x"])], "ab", id="let them say it"),
    ],
)
def test_a_policys_requests_go_to_its_pool(views: list[View], expected: str) -> None:
    """And there to the engines that serve the model."""
    found = eligible(views, POLICY, "qwen")

    assert [f"http://{name}" for name in expected] == [item.engine.url for item in found]


def test_without_a_policy_the_model_decides() -> None:
    """A request that no policy matches goes wherever its model is."""
    views = [view("a", HERE, ["qwen"]), view("b", THERE, ["llama"])]

    assert views[1:] == list(eligible(views, None, "llama"))
    assert views == list(eligible(views, None, None))
