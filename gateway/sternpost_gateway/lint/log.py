"""
Log files, line by line, as often as they are asked for.

Lines are read one at a time and none is kept, so that a log of any size takes the memory of its longest line.
What is no request is counted and the first few are remembered by number and reason.
"""

from __future__ import annotations

import gzip
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Final, cast

from sternpost_core.errors import OperatingError
from sternpost_gateway.lint.request import BadLine, LogFormat, LoggedRequest, SkippedLine
from sternpost_gateway.lint.rows import detect_format, read_row

STANDARD_INPUT: Final = "-"

LINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of one line; a gateway takes no larger body either."""

NAMED_MAX: Final = 5
"""Bad lines of a log that are named; all are counted."""

DETECTED_LINES_MAX: Final = 100
"""Lines that are looked at to learn a file's format."""

_GZIP_MAGIC: Final = b"\x1f\x8b"
_READ_BYTES: Final = 1024 * 1024


@dataclass(slots=True)
class LineCounts:
    """What the lines of a log were; filled in as they are read."""

    requests: int = 0
    skipped: int = 0
    bad: int = 0
    named: list[tuple[str, int, str]] = field(default_factory=list)
    """File, line and reason of the first bad lines."""

    def add_bad(self, name: str, number: int, reason: str) -> None:
        """Count a bad line."""
        self.bad += 1
        if len(self.named) < NAMED_MAX:
            self.named.append((name, number, reason))


class Log:
    """
    The requests of some files, in their order; `format_asked` is for all files, None to look for each.

    Standard input is kept in a temporary file without a name, because it is read more than once.
    """

    def __init__(
        self,
        names: Sequence[str],
        format_asked: LogFormat | None,
        stack: ExitStack,
        standard_input: IO[bytes],
        *,
        requests_max: int | None = None,
        line_bytes_max: int = LINE_BYTES_MAX,
    ) -> None:
        self.names = tuple(names)
        self._format_asked = format_asked
        self._requests_max = requests_max
        self._line_bytes_max = line_bytes_max
        self._spooled = _spool(standard_input, stack) if STANDARD_INPUT in names else None
        self.size = sum(self._size(name) for name in names)

    def requests(
        self, counts: LineCounts, advance: Callable[[int], None]
    ) -> Iterator[tuple[str, LoggedRequest]]:
        """
        Yield file and request of each line that holds one; `advance` is told the bytes that have been read.

        With `requests_max`, only the first so many.

        Raises:
            OperatingError: a file cannot be read.
        """
        return islice(self._all_requests(counts, advance), self._requests_max)

    def _all_requests(
        self, counts: LineCounts, advance: Callable[[int], None]
    ) -> Iterator[tuple[str, LoggedRequest]]:
        for name in self.names:
            try:
                yield from self._file_requests(name, counts, advance)
            except (OSError, EOFError, zlib.error) as error:
                # A gzip file that is cut ends with an EOFError, a damaged one with either of the others.
                raise OperatingError(f"{name} cannot be read: {error}") from error

    def _file_requests(
        self, name: str, counts: LineCounts, advance: Callable[[int], None]
    ) -> Iterator[tuple[str, LoggedRequest]]:
        log_format = self._format_asked
        undecided = 0
        with ExitStack() as stack:
            raw = self._open(name, stack)
            lines = _lines(_decompressed(raw, stack), raw, self._line_bytes_max, advance)
            for number, line in lines:
                if line is None:
                    counts.add_bad(name, number, f"longer than {self._line_bytes_max} bytes")
                    continue
                if not line.strip():
                    continue
                log_format = log_format or detect_format(line)
                undecided += log_format is None
                if undecided > DETECTED_LINES_MAX:
                    counts.add_bad(name, number, "no format was recognised so far; the rest is not read")
                    return
                request = _read(line, name, number, log_format or LogFormat.BODIES, counts)
                if request is not None:
                    yield name, request

    def _open(self, name: str, stack: ExitStack) -> IO[bytes]:
        if self._spooled is not None and name == STANDARD_INPUT:
            self._spooled.seek(0)
            return self._spooled
        return stack.enter_context(Path(name).open("rb"))

    def _size(self, name: str) -> int:
        if self._spooled is not None and name == STANDARD_INPUT:
            return self._spooled.seek(0, 2)
        try:
            return Path(name).stat().st_size
        except OSError as error:
            raise OperatingError(f"{name} cannot be read: {error.strerror}") from error


def _spool(standard_input: IO[bytes], stack: ExitStack) -> IO[bytes]:
    # It is open for as long as the stack is, and goes with its last descriptor.
    spooled: IO[bytes] = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
    shutil.copyfileobj(standard_input, spooled, _READ_BYTES)
    return spooled


def _decompressed(raw: IO[bytes], stack: ExitStack) -> IO[bytes]:
    magic = raw.read(len(_GZIP_MAGIC))
    raw.seek(0)
    if magic != _GZIP_MAGIC:
        return raw
    return cast(IO[bytes], stack.enter_context(gzip.GzipFile(fileobj=raw)))


def _lines(
    file: IO[bytes], raw: IO[bytes], bytes_max: int, advance: Callable[[int], None]
) -> Iterator[tuple[int, bytes | None]]:
    """Yield the lines with their numbers; None for one that is too long, whose rest is passed over."""
    number = position = 0
    while line := file.readline(bytes_max + 1):
        number += 1
        is_whole = len(line) <= bytes_max
        while line and not line.endswith(b"\n") and not is_whole:
            line = file.readline(bytes_max)
        yield number, line.rstrip(b"\r\n") if is_whole else None
        # The position of the raw file counts compressed bytes, as the file's size does.
        advance(raw.tell() - position)
        position = raw.tell()


def _read(
    line: bytes, name: str, number: int, log_format: LogFormat, counts: LineCounts
) -> LoggedRequest | None:
    try:
        request = read_row(line, number, log_format)
    except SkippedLine:
        counts.skipped += 1
        return None
    except BadLine as error:
        counts.add_bad(name, number, str(error))
        return None
    counts.requests += 1
    return request
