"""The calls that the process that answers HTTP makes to the engine core."""

from types import SimpleNamespace
from typing import Any

import pytest

from sternpost_engine.core_calls import CALLS, POOL_CALL, TAILS_CALL, install_calls


class Side:
    """The half of the connector that knows the store."""

    def describe_pool(self) -> dict[str, Any]:
        """Describe the store."""
        return {"pool_bytes": 3}

    def describe_tails(self) -> dict[str, Any]:
        """List the tails."""
        return {"tails": []}


def core_of(connector: object) -> Any:
    """Return an engine core whose class has the calls."""

    class Core:
        scheduler = SimpleNamespace(get_kv_connector=lambda: connector)

    install_calls(Core)
    install_calls(Core)
    return Core()


@pytest.mark.parametrize(
    ("call", "answer"), [(POOL_CALL, {"pool_bytes": 3}), (TAILS_CALL, {"tails": []})], ids=["pool", "tails"]
)
def test_call_is_answered_by_the_scheduler_side(call: str, answer: dict[str, Any]) -> None:
    """By the name under which vLLM finds it."""
    core = core_of(SimpleNamespace(scheduler_side=Side()))

    assert answer == getattr(core, call)()


@pytest.mark.parametrize(
    "connector",
    [
        pytest.param(None, id="no-connector"),
        pytest.param(SimpleNamespace(), id="another-connector"),
        pytest.param(SimpleNamespace(scheduler_side=None), id="another-half"),
    ],
)
def test_engine_without_a_store_answers_with_nothing(connector: object) -> None:
    """The plugin may be loaded where the connector is not named."""
    core = core_of(connector)

    assert [{}, {}] == [getattr(core, call)() for call in CALLS]
