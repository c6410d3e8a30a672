"""
Workloads as files: JSON with a shape, its sizes, and how sessions arrive; the same seed makes the same bytes.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from sternpost_core.errors import Fault, OperatingError, SettingsError
from sternpost_core.text import describe
from sternpost_gateway.bench.makers import MAKERS, Chances, Count
from sternpost_gateway.bench.workload import Arrivals, Bursts, Closed, Poisson, Traced, Workload

BUILT_IN: Final = Path(__file__).parent / "data" / "workloads.json"

WARM_UPS: Final = 3
"""Requests before anything is measured: what a target does at its first request of a kind is not measured."""

SESSIONS_MAX: Final = 100_000
SIZE_MAX: Final = 1_000_000

ARRIVALS: Final[Mapping[str, type[Arrivals]]] = {
    "closed": Closed,
    "poisson": Poisson,
    "bursts": Bursts,
    "traced": Traced,
}

WHOLE_NUMBERS: Final = frozenset({"at_once", "size"})
"""What counts sessions, of how they arrive."""

KEYS: Final = ("name", "about", "shape", "sessions", "answer_tokens", "arrivals", "sizes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One workload as a file describes it; `sizes` are what its shape is called with."""

    name: str
    about: str
    shape: str
    sessions: int
    answer_tokens: int
    arrivals: Arrivals
    sizes: Mapping[str, int]

    def make(self, seed: int, repeat: int = 0, *, sessions: int | None = None) -> Workload:
        """Make the workload of a repetition; what is fixed in it is the same in all of them."""
        chances = Chances(Random(f"{seed} {self.name}"), Random(f"{seed} {self.name} {repeat}"))
        count = Count(self.sessions if sessions is None else sessions, WARM_UPS, self.answer_tokens)
        made = MAKERS[self.shape](chances, count, **self.sizes)
        return Workload(
            name=self.name,
            about=self.about,
            sessions=made.sessions,
            warm_ups=made.warm_ups,
            arrivals=self.arrivals,
        )


def load_recipes(path: Path = BUILT_IN) -> tuple[Recipe, ...]:
    """
    Read a file of workloads.

    Raises:
        OperatingError: it cannot be read.
        SettingsError: it holds what is no workload; with every fault.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OperatingError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(document, list):
        raise SettingsError(str(path), [Fault("$", describe(document), "a list of workloads")])
    faults: list[Fault] = []
    recipes = [_recipe(f"$[{place}]", entry, faults) for place, entry in enumerate(document)]
    if faults:
        raise SettingsError(str(path), faults)
    return tuple(recipe for recipe in recipes if recipe is not None)


def chosen(recipes: Sequence[Recipe], names: Sequence[str]) -> list[Recipe]:
    """
    Return the recipes that are named, in that order; all, where none is.

    Raises:
        SettingsError: a name is none of theirs.
    """
    known = {recipe.name: recipe for recipe in recipes}
    faults = [
        Fault("--workload", repr(name), ", ".join(sorted(known))) for name in names if name not in known
    ]
    if faults:
        raise SettingsError("bench", faults)
    return [known[name] for name in names] or list(recipes)


def read_arrivals(path: str, entry: object, faults: list[Fault]) -> Arrivals:
    """Read how sessions arrive; what is wrong is added to `faults`."""
    allowed = "an object with kind " + ", ".join(ARRIVALS)
    kind = entry.get("kind") if isinstance(entry, Mapping) else None
    if not isinstance(entry, Mapping) or not isinstance(kind, str) or kind not in ARRIVALS:
        faults.append(Fault(path, describe(entry), allowed))
        return Closed()
    values = {key: value for key, value in entry.items() if key != "kind"}
    for key, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= SIZE_MAX:
            faults.append(Fault(f"{path}.{key}", describe(value), f"a number above 0, at most {SIZE_MAX}"))
        elif key in WHOLE_NUMBERS and not float(value).is_integer():
            faults.append(Fault(f"{path}.{key}", describe(value), "a whole number"))
    try:
        return ARRIVALS[kind](**values)
    except TypeError:
        names = ", ".join(inspect.signature(ARRIVALS[kind]).parameters)
        faults.append(Fault(path, ", ".join(values) or "nothing", f"for {kind}: {names}"))
        return Closed()


def arrivals_text(arrivals: Arrivals) -> str:
    """Return how sessions arrive as a flag says it, such as `closed:at_once=1`."""
    kind = next(name for name, known in ARRIVALS.items() if isinstance(arrivals, known))
    values = ",".join(f"{name}={value:g}" for name, value in asdict(arrivals).items())
    return f"{kind}:{values}"


def _recipe(path: str, entry: object, faults: list[Fault]) -> Recipe | None:
    if not isinstance(entry, Mapping) or set(entry) != set(KEYS):
        found = ", ".join(map(str, entry)) if isinstance(entry, Mapping) else describe(entry)
        faults.append(Fault(path, found, "an object with " + ", ".join(KEYS)))
        return None
    before = len(faults)
    for key in ("name", "about", "shape"):
        if not isinstance(entry[key], str) or not entry[key]:
            faults.append(Fault(f"{path}.{key}", describe(entry[key]), "a string"))
    if entry["shape"] not in MAKERS:
        faults.append(Fault(f"{path}.shape", repr(entry["shape"]), ", ".join(MAKERS)))
    for key in ("sessions", "answer_tokens"):
        _check_size(f"{path}.{key}", entry[key], 1, SESSIONS_MAX, faults)
    arrivals = read_arrivals(f"{path}.arrivals", entry["arrivals"], faults)
    if len(faults) == before:
        _check_sizes(f"{path}.sizes", entry["shape"], entry["sizes"], faults)
    return None if len(faults) > before else Recipe(**{**entry, "arrivals": arrivals})


def _check_sizes(path: str, shape: str, sizes: object, faults: list[Fault]) -> None:
    parameters = inspect.signature(MAKERS[shape]).parameters.values()
    known = {item.name: item for item in parameters if item.kind is inspect.Parameter.KEYWORD_ONLY}
    allowed = f"for {shape}: " + (", ".join(known) or "nothing")
    if not isinstance(sizes, Mapping):
        faults.append(Fault(path, describe(sizes), "an object"))
        return
    faults += [Fault(f"{path}.{key}", "an unknown size", allowed) for key in sizes if key not in known]
    for name, parameter in known.items():
        if name in sizes:
            _check_size(f"{path}.{name}", sizes[name], 0, SIZE_MAX, faults)
        elif parameter.default is inspect.Parameter.empty:
            faults.append(Fault(f"{path}.{name}", "nothing", "a number of tokens or turns"))


def _check_size(path: str, value: Any, least: int, most: int, faults: list[Fault]) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        faults.append(Fault(path, describe(value), f"an integer from {least} to {most}"))
