"""What the command line of `sternpost bench` asks for, read into values; every fault is told at once."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from sternpost_core.errors import Fault, SettingsError
from sternpost_core.text import describe
from sternpost_gateway.bench.procedure import check_in_turn
from sternpost_gateway.bench.recipes import BUILT_IN, Recipe, chosen, load_recipes, read_arrivals
from sternpost_gateway.bench.replay import ReplayOptions, load_replay
from sternpost_gateway.bench.target import Target
from sternpost_gateway.bench.workload import Arrivals, Workload
from sternpost_gateway.secret_files import secret_text
from sternpost_gateway.settings import url_fault

NAMED: Final = "NAME=VALUE"


@dataclass(frozen=True, slots=True)
class Made:
    """A workload by its name and sentence, how its sessions arrive, and what makes it for a repetition."""

    name: str
    about: str
    arrivals: Arrivals
    make: Callable[[int], Workload]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """
    What is to be run; the targets' model is empty where they are to be asked for it.

    With `in_turn`, each session is held at every target before the next one begins.
    """

    targets: tuple[Target, ...]
    workloads: tuple[Made, ...]
    repeats: int
    in_turn: bool
    seed: int
    baseline: str
    resets: tuple[str, ...]
    settle_seconds: float
    out: Path


def order_of(arguments: argparse.Namespace) -> Order:
    """
    Return what the flags ask for.

    Raises:
        SettingsError: with every fault of the targets, those of a file, or the workloads that cannot be held
            in turn.
        OperatingError: a file cannot be read.
    """
    targets = _targets(arguments)
    baseline = arguments.baseline or targets[0].name
    if baseline not in {target.name for target in targets}:
        names = ", ".join(target.name for target in targets)
        raise SettingsError("bench", [Fault("--baseline", repr(baseline), names)])
    workloads = tuple(_workloads(arguments))
    if arguments.in_turn:
        check_in_turn("--in-turn", {made.name: made.arrivals for made in workloads})
    return Order(
        targets=targets,
        workloads=workloads,
        repeats=arguments.repeats,
        in_turn=arguments.in_turn,
        seed=arguments.seed,
        baseline=baseline,
        resets=tuple(arguments.engine) if arguments.reset else (),
        settle_seconds=arguments.settle_seconds,
        out=arguments.out,
    )


def _targets(arguments: argparse.Namespace) -> tuple[Target, ...]:
    faults: list[Fault] = []
    origins: dict[str, list[str]] = {}
    for flag in arguments.target:
        name, url = _named("--target", flag, faults)
        if fault := url_fault("--target", url):
            faults.append(fault)
        origins.setdefault(name, []).append(url.rstrip("/"))
    if not origins:
        faults.append(Fault("--target", "nothing", "NAME=URL, once for each endpoint"))
    faults += [fault for url in arguments.engine if (fault := url_fault("--engine", url))]
    extras = dict(_bodies(arguments.target_body, origins, faults))
    if arguments.reset and not arguments.engine:
        faults.append(Fault("--reset", "no --engine", "the engines whose prefix caches are emptied"))
    for name in arguments.no_reuse:
        if name not in origins:
            faults.append(Fault("--no-reuse", repr(name), ", ".join(origins)))
    if faults:
        raise SettingsError("bench", faults)
    headers = _headers(arguments.api_key_file)
    engines = tuple(url.rstrip("/") for url in arguments.engine)
    return tuple(
        Target(
            name=name,
            origins=tuple(urls),
            model=arguments.model or "",
            extra=extras.get(name, {}),
            headers=headers,
            salted=name in arguments.no_reuse,
            engines=engines,
        )
        for name, urls in origins.items()
    )


def _bodies(
    flags: Sequence[str], known: Mapping[str, Any], faults: list[Fault]
) -> list[tuple[str, Mapping[str, Any]]]:
    found: list[tuple[str, Mapping[str, Any]]] = []
    for flag in flags:
        name, text = _named("--target-body", flag, faults)
        if name not in known:
            faults.append(Fault("--target-body", repr(name), ", ".join(known)))
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        if isinstance(value, dict):
            found.append((name, value))
        else:
            faults.append(Fault("--target-body", describe(value), "NAME= and a JSON object"))
    return found


def _named(flag: str, text: str, faults: list[Fault]) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals or not value:
        faults.append(Fault(flag, repr(text), NAMED))
    return name, value


def _headers(key_file: Path | None) -> dict[str, str]:
    key = secret_text("--api-key-file", key_file, 1)
    return {} if key is None else {"authorization": f"Bearer {key}"}


def _workloads(arguments: argparse.Namespace) -> list[Made]:
    """Return what is replayed where anything is, else the recipes that are named."""
    if arguments.replay:
        return _all_differ([_replayed(path, arguments) for path in arguments.replay])
    recipes = chosen(load_recipes(arguments.workloads or BUILT_IN), arguments.workload)
    return [
        Made(recipe.name, recipe.about, recipe.arrivals, partial(_make, recipe, arguments))
        for recipe in recipes
    ]


def _all_differ(replays: list[Made]) -> list[Made]:
    # Workloads are told apart by name alone, in records and in tables.
    twice = [name for name, count in Counter(made.name for made in replays).items() if count > 1]
    if twice:
        allowed = "files whose names differ before their first dot"
        raise SettingsError("bench", [Fault("--replay", repr(name), allowed) for name in twice])
    return replays


def _make(recipe: Recipe, arguments: argparse.Namespace, repeat: int) -> Workload:
    return recipe.make(arguments.seed, repeat, sessions=arguments.sessions)


def _replayed(path: Path, arguments: argparse.Namespace) -> Made:
    options = ReplayOptions(
        requests_max=arguments.requests_max,
        arrivals=_arrivals(arguments.arrivals),
        answer_tokens=arguments.answer_tokens,
        scale=arguments.trace_scale,
        seed=arguments.seed,
    )
    workload = load_replay(path, options)
    return Made(workload.name, workload.about, workload.arrivals, lambda repeat: workload)


def _arrivals(text: str) -> Arrivals:
    """Read `closed:at_once=2`, `poisson:per_second=1.5`, `bursts:size=8,seconds=2` or `traced:speed=2`."""
    kind, _, pairs = text.partition(":")
    entry: dict[str, Any] = {"kind": kind}
    for pair in filter(None, pairs.split(",")):
        name, _, value = pair.partition("=")
        try:
            entry[name] = float(value)
        except ValueError:
            entry[name] = value
    faults: list[Fault] = []
    arrivals = read_arrivals("--arrivals", entry, faults)
    if faults:
        raise SettingsError("bench", faults)
    return arrivals
