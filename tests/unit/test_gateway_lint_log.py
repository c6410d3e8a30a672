"""Log files: read as often as needed, one line at a time, and whatever is wrong in them."""

from __future__ import annotations

import gzip
import io
from contextlib import ExitStack
from pathlib import Path

import pytest

from sternpost_core.errors import OperatingError
from sternpost_fakes.lint_logs import chats, write_log
from sternpost_gateway.lint.log import DETECTED_LINES_MAX, LINE_BYTES_MAX, NAMED_MAX, LineCounts, Log
from sternpost_gateway.lint.request import LogFormat

GOOD = chats(3, lambda number: "rules")


def read(
    path: Path, log_format: LogFormat | None = None, line_bytes_max: int = LINE_BYTES_MAX
) -> tuple[list[int], LineCounts, int]:
    """Return the numbers of the lines that hold requests, the counts, and the bytes that were told of."""
    told: list[int] = []
    counts = LineCounts()
    with ExitStack() as stack:
        log = Log([str(path)], log_format, stack, io.BytesIO(), line_bytes_max=line_bytes_max)
        numbers = [request.number for _, request in log.requests(counts, told.append)]
        assert numbers == [request.number for _, request in log.requests(LineCounts(), told.append)]
        assert sum(told) <= 2 * log.size
    return numbers, counts, sum(told)


def test_lines_keep_their_numbers(tmp_path: Path) -> None:
    """Empty and bad lines count as lines."""
    lines = [GOOD[0], b"", b"{", GOOD[1], b"  ", GOOD[2]]
    numbers, counts, told = read(write_log(tmp_path / "log", lines))

    assert [1, 4, 6] == numbers
    assert (3, 1, 0) == (counts.requests, counts.bad, counts.skipped)
    assert [(str(tmp_path / "log"), 3)] == [(file, number) for file, number, _ in counts.named]
    assert 2 * (tmp_path / "log").stat().st_size == told


def test_the_last_line_needs_no_end(tmp_path: Path) -> None:
    """A log may have been cut behind a whole line."""
    (tmp_path / "log").write_bytes(GOOD[0] + b"\r\n" + GOOD[1])

    assert [1, 2] == read(tmp_path / "log")[0]


def test_a_compressed_log_is_read_by_what_it_is(tmp_path: Path) -> None:
    """Whatever its name says."""
    (tmp_path / "log").write_bytes(gzip.compress(b"\n".join(GOOD)))

    assert [1, 2, 3] == read(tmp_path / "log")[0]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(gzip.compress(b"\n".join(GOOD))[:-20], "cannot be read", id="cut"),
        pytest.param(gzip.compress(b"\n".join(GOOD))[:20] + b"x" * 50, "cannot be read", id="damaged"),
    ],
)
def test_a_broken_compressed_log_says_so(tmp_path: Path, data: bytes, reason: str) -> None:
    """It is the file's fault, and the message names the file."""
    (tmp_path / "log.gz").write_bytes(data)

    with pytest.raises(OperatingError, match=f"log.gz {reason}"):
        read(tmp_path / "log.gz")


def test_a_missing_log_says_so(tmp_path: Path) -> None:
    """Before anything is read."""
    with pytest.raises(OperatingError, match="none cannot be read: No such file"):
        read(tmp_path / "none")


def test_few_bad_lines_are_named_and_all_are_counted(tmp_path: Path) -> None:
    """A log of nothing but bad lines takes no more memory than a good one."""
    _, counts, _ = read(write_log(tmp_path / "log", [b"x"] * 50))

    assert (0, 50, NAMED_MAX) == (counts.requests, counts.bad, len(counts.named))


def test_a_log_without_a_known_format_is_given_up(tmp_path: Path) -> None:
    """Rather than read to its end in vain."""
    _, counts, _ = read(write_log(tmp_path / "log", [b'{"a": 1}'] * (DETECTED_LINES_MAX + 50)))

    assert DETECTED_LINES_MAX + 1 == counts.bad


def test_the_format_may_be_told(tmp_path: Path) -> None:
    """Then nothing is guessed."""
    line = b'{"input": [{"role": "user", "content": "a"}], "traceId": "t"}'
    path = write_log(tmp_path / "log", [line])

    with ExitStack() as stack:
        log = Log([str(path)], LogFormat.BODIES, stack, io.BytesIO())
        requests = log.requests(LineCounts(), lambda read: None)
        assert ["/v1/responses"] == [request.path for _, request in requests]


def test_a_line_that_is_too_long_is_passed_over(tmp_path: Path) -> None:
    """What stands behind it is read."""
    path = write_log(tmp_path / "log", [GOOD[0], b'{"a": "' + b"x" * 5000 + b'"}', GOOD[1]])
    numbers, counts, _ = read(path, line_bytes_max=1000)

    assert [1, 3] == numbers
    assert "longer than 1000 bytes" == counts.named[0][2]


def test_only_so_many_requests_are_read(tmp_path: Path) -> None:
    """For a first look at a large log."""
    path = write_log(tmp_path / "log", [b"{", *GOOD])
    with ExitStack() as stack:
        log = Log([str(path)], None, stack, io.BytesIO(), requests_max=2)
        assert [2, 3] == [request.number for _, request in log.requests(LineCounts(), lambda read: None)]


def test_standard_input_is_read_more_than_once() -> None:
    """What comes down a pipe comes once only, so it is kept for the second pass."""
    with ExitStack() as stack:
        log = Log(["-"], None, stack, io.BytesIO(b"\n".join(GOOD)))
        for _ in range(2):
            assert 3 == len(list(log.requests(LineCounts(), lambda read: None)))
