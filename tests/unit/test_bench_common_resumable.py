"""How a benchmark's run ends that can be gone on with."""

import io

import pytest

from bench.common.resumable import EXIT_INTERRUPTED, EXIT_MORE, status_of
from bench.common.store import OutOfTime
from bench.demo.progress import Progress
from sternpost_core.errors import OperatingError
from sternpost_fakes.clock import FakeClock


@pytest.mark.parametrize(
    ("error", "expected", "said"),
    [
        pytest.param(None, 0, "", id="done"),
        pytest.param(OutOfTime("run it again"), EXIT_MORE, "run it again", id="out of time"),
        pytest.param(OperatingError("no engine"), 1, "failed: no engine", id="failed"),
        pytest.param(KeyboardInterrupt(), EXIT_INTERRUPTED, "interrupted", id="interrupted"),
    ],
)
def test_the_status_says_how_a_run_ended(error: BaseException | None, expected: int, said: str) -> None:
    """So that a script knows whether to run it again."""

    def work() -> None:
        if error is not None:
            raise error

    stream = io.StringIO()

    assert expected == status_of(work, Progress(FakeClock(), 0.0, stream))
    assert said in stream.getvalue()
