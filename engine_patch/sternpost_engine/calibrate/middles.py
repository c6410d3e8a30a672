"""The middles: read from a file or the generic set, and parted: some to calibrate over, some to test on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sternpost_core.errors import Fault, SettingsError
from sternpost_engine.texts import TEXT_CHARACTERS_MAX, TEXTS_MAX, Text, generic_texts, parse_lines

TEXTS_MIN: Final = 4
"""With fewer there are none to hold out."""

HELD_OUT_SHARE_MAX: Final = 0.5
"""At most this share of the texts is held out for testing: few texts are needed for calibration, too."""


@dataclass(frozen=True, slots=True)
class Middles:
    """Texts to calibrate over, and others to test on; `generic` for the set that ships with the product."""

    calibration: tuple[Text, ...]
    test: tuple[Text, ...]
    generic: bool


def read_middles(path: Path | None, kind: str, test_count: int) -> Middles:
    """
    Read the middles, keep those of `kind` (all, when it is empty), and hold `test_count` out.

    A file whose name ends in `.jsonl` or `.json` holds one object a line, any other one text a line.

    Raises:
        SettingsError: when the file or a line cannot be read, or there are too few of the kind.
    """
    texts = generic_texts() if path is None else _read_file(path)
    kinds = sorted({text.kind for text in texts if text.kind})
    chosen = [text for text in texts if not kind or text.kind == kind]
    if kind and not chosen:
        raise _refuse(
            "--kind", repr(kind), f"one of {', '.join(kinds)}" if kinds else "none: no text has one"
        )
    if len(chosen) < TEXTS_MIN:
        flag, found = ("--middles", str(path)) if path else ("--kind", repr(kind))
        raise _refuse(flag, f"{found} with {len(chosen)} texts", f"at least {TEXTS_MIN}")
    calibration, test = hold_out(chosen, test_count)
    return Middles(calibration, test, generic=path is None)


def hold_out(texts: Sequence[Text], count: int) -> tuple[tuple[Text, ...], tuple[Text, ...]]:
    """
    Part texts into those to calibrate over and `count` to test on, or half of them where there are fewer.

    What is held out is spread evenly over the texts in the order of their kinds, so that both parts have
    some of each.
    """
    ordered = sorted(texts, key=lambda text: text.kind)
    count = min(count, int(len(ordered) * HELD_OUT_SHARE_MAX))
    held = {(2 * number + 1) * len(ordered) // (2 * count) for number in range(count)}
    calibration = tuple(text for place, text in enumerate(ordered) if place not in held)
    return calibration, tuple(text for place, text in enumerate(ordered) if place in held)


def read_text(path: Path, flag: str) -> str:
    """
    Read a file of UTF-8 text that is not empty.

    Raises:
        SettingsError: which names the flag.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        allowed = "a file of UTF-8 text that can be read"
        raise _refuse(flag, f"{path} ({type(error).__name__})", allowed) from error
    if not text.strip():
        raise _refuse(flag, f"{path}, which is empty", "a file with some text")
    return text.strip()


def _read_file(path: Path) -> tuple[Text, ...]:
    content = read_text(path, "--middles")
    if path.suffix in (".jsonl", ".json"):
        texts = parse_lines(content, path.name)
    else:
        lines = [line.strip() for line in content.split("\n")]
        texts = [Text("", line[:TEXT_CHARACTERS_MAX]) for line in lines if line]
    return tuple(texts[:TEXTS_MAX])


def _refuse(flag: str, value: str, allowed: str) -> SettingsError:
    return SettingsError("calibrate", [Fault(flag, value, allowed)])
