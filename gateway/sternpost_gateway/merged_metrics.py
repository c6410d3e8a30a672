"""One page of metrics from those of several worker processes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

WORKER_LABEL: Final = "worker"

_SAMPLE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{)?")
END: Final = "# EOF"
"""The last line of a page in the format of OpenMetrics, after which nothing may come."""

_COMMENT: Final = re.compile(r"# (?:HELP|TYPE) ")


def merge_pages(pages: Mapping[int, str]) -> str:
    """
    Return the pages of workers, by their index, as one page in their format, Prometheus' text or OpenMetrics.

    Each sample gets the label `worker`, and keeps its exemplar. In a plain sum, a worker that starts anew
    would take its part of a counter with it, and whoever computes a rate would take what is left for an
    increase.
    """
    families: dict[str, list[str]] = {}
    for index, page in pages.items():
        for head, samples in _families(page):
            lines = families.setdefault(head, [])
            lines.extend(_labelled(sample, index) for sample in samples)
    merged = "".join("\n".join((head, *lines)) + "\n" for head, lines in families.items())
    return f"{merged}{END}\n" if any(page.endswith(f"{END}\n") for page in pages.values()) else merged


def _families(page: str) -> list[tuple[str, list[str]]]:
    """Return the metrics of a page: the comments in front of each, and its samples."""
    found: list[tuple[str, list[str]]] = []
    for line in page.splitlines():
        if _COMMENT.match(line) is None:
            if found and line and line != END:
                found[-1][1].append(line)
        elif found and not found[-1][1] and found[-1][0].startswith("# HELP ") and line.startswith("# TYPE "):
            found[-1] = (f"{found[-1][0]}\n{line}", [])
        else:
            found.append((line, []))
    return found


def _labelled(sample: str, index: int) -> str:
    match = _SAMPLE.match(sample)
    if match is None:
        return sample
    label = f'{WORKER_LABEL}="{index}"'
    rest = sample[match.end() :]
    return f"{match[1]}{{{label},{rest}" if match[2] else f"{match[1]}{{{label}}}{rest}"
