"""An engine that is told to end takes no further samples."""

from types import SimpleNamespace
from typing import Any

import pytest

from sternpost_engine.core_end import end_samples_at_shutdown


def core_of(scheduler: object, *, running: bool) -> Any:
    """Return an engine core's process, which was wrapped twice, as vLLM may load plugins."""

    class CoreProcess:
        """Goes on while it has work."""

        def __init__(self) -> None:
            self.scheduler = scheduler

        def is_running(self) -> bool:
            """Whether it was not told to end."""
            return running

        def _handle_shutdown(self) -> str:
            return "what vLLM says"

    end_samples_at_shutdown(CoreProcess)
    end_samples_at_shutdown(CoreProcess)
    return CoreProcess()


@pytest.mark.parametrize(
    ("running", "expected"), [(True, []), (False, ["ended"])], ids=["running", "told-to-end"]
)
def test_samples_end_with_the_engine(running: bool, expected: list[str]) -> None:
    """Before vLLM looks whether there is work left."""
    ended: list[str] = []
    core = core_of(SimpleNamespace(end_samples=lambda: ended.append("ended")), running=running)

    assert "what vLLM says" == core._handle_shutdown()
    assert expected == ended


def test_other_schedulers_are_left_alone() -> None:
    """The plugin may be loaded where its scheduler is not named."""
    assert "what vLLM says" == core_of(SimpleNamespace(), running=False)._handle_shutdown()


def test_other_releases_are_left_alone() -> None:
    """A process without the method is served as it is."""

    class Other:
        """Has no such method."""

    end_samples_at_shutdown(Other)

    assert "_handle_shutdown" not in dir(Other)
