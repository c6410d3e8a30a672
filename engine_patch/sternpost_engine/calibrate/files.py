"""What a calibration leaves behind: figures as CSV and JSON, the advised settings, and a picture."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from dataclasses import asdict, fields
from io import StringIO
from pathlib import Path
from typing import Any, Final

from sternpost_core.errors import OperatingError
from sternpost_engine.calibrate.advice import snippet
from sternpost_engine.calibrate.arms import Arm
from sternpost_engine.calibrate.scores import Figures
from sternpost_engine.calibrate.settings import Settings
from sternpost_engine.calibrate.trial import Outcome

CSV_NAME: Final = "calibration.csv"
JSON_NAME: Final = "calibration.json"
POLICY_NAME: Final = "policy.yaml"
PLOT_NAME: Final = "calibration.png"

DIGITS: Final = 6
"""Decimal places of a figure in its file."""

PLOT_MISSING: Final = (
    f"{PLOT_NAME} is not drawn: matplotlib is not installed; pip install 'sternpost[calibrate]'"
)


def write_files(outcome: Outcome, settings: Settings, tell: Callable[[str], None]) -> None:
    """
    Write all files into the folder `settings.out`, and tell their paths.

    Raises:
        OperatingError: when the folder cannot be made or written to.
    """
    texts = {CSV_NAME: as_csv(outcome), JSON_NAME: as_json(outcome, settings)}
    if outcome.advice is not None:
        texts[POLICY_NAME] = snippet(outcome.advice.cache)
    try:
        settings.out.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (settings.out / name).write_text(text, encoding="utf-8")
            tell(str(settings.out / name))
        _draw(outcome, settings.out / PLOT_NAME, tell)
    except OSError as error:
        raise OperatingError(f"the folder of --out, {settings.out}, cannot be written to: {error}") from error


def as_csv(outcome: Outcome) -> str:
    """Return one line per arm, under a line of names."""
    out = StringIO()
    names = [*_columns(Arm), *(name for name in _columns(Figures) if name != "arm")]
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_row(figures) for figures in outcome.figures)
    return out.getvalue()


def as_json(outcome: Outcome, settings: Settings) -> str:
    """Return the settings, what was found, and the advice."""
    advice = outcome.advice
    document = {
        "settings": {name: _plain(value) for name, value in asdict(settings).items()},
        "tail_tokens": len(outcome.frame.tail),
        "prefix_tokens": outcome.frame.insert,
        "middles": {
            "wanted": outcome.wanted,
            "tested": outcome.figures[0].middles,
            "generic": outcome.generic,
        },
        "samples": {str(length): count for length, count in outcome.samples.items()},
        "seconds": round(outcome.seconds, 1),
        "rows": [_row(figures) for figures in outcome.figures],
        "advice": {"arm": str(advice.figures.arm), "within": advice.within} if advice else None,
    }
    return json.dumps(document, indent=2) + "\n"


def _draw(outcome: Outcome, path: Path, tell: Callable[[str], None]) -> None:
    try:
        # Drawing is optional, and takes a second to load.
        from sternpost_engine.calibrate.plot import write_plot
    except ImportError:
        tell(PLOT_MISSING)
        return
    write_plot(outcome.figures, path)
    tell(str(path))


def _row(figures: Figures) -> dict[str, Any]:
    row = asdict(figures)
    arm = row.pop("arm")
    return {key: _rounded(value) for key, value in {**arm, **row}.items()}


def _rounded(value: object) -> object:
    # JSON has no infinities.
    if isinstance(value, float):
        return round(value, DIGITS) if math.isfinite(value) else None
    return value


def _columns(kind: type[Arm] | type[Figures]) -> list[str]:
    return [field.name for field in fields(kind)]


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value
