"""Engines and targets run for as long as there is work; each unit is recorded as soon as it is done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from bench.agent_log.vllm_parts import CHAT_TEMPLATE
from bench.common.engine_api import Engine
from bench.common.engine_process import EngineSettings, StartEngine
from bench.common.process_group import group_bytes
from bench.common.store import OutOfTime, RecordStore
from bench.demo.progress import Progress
from bench.demo.stack import free_ports
from bench.evaluation.scope import SEED, Amount, Scope
from bench.evaluation.targets import ONLY, targets_of
from bench.routing.routers import HOST, NotReady, Router, running
from sternpost_gateway.bench.client import open_session
from sternpost_gateway.bench.procedure import SETTLE_SECONDS, Bench, Step, interleaved
from sternpost_gateway.bench.recipes import Recipe, load_recipes
from sternpost_gateway.bench.sample import Unit
from sternpost_gateway.bench.summary import MEMORY
from sternpost_gateway.bench.target import Target

ENGINES: Final = 2
KV_CACHE_GIB: Final = 1

BLOCK_TOKENS: Final = 32
"""The least that vLLM's CPU build computes well with; its own choice, 128, would hide much of each prefix."""

ROUTER_PORT: Final = 8300
"""Where free ports for routers are looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """
    What is asked of what, where records and logs go, and until when.

    `seconds_max` counts from the progress's start; `settle_seconds` is the pause after each warm-up.
    """

    scope: Scope
    only: tuple[str, ...]
    routers: Sequence[Router]
    records: RecordStore
    progress: Progress
    start: StartEngine
    model: Path
    folder: Path
    seconds_max: float
    settle_seconds: float = SETTLE_SECONDS


@dataclass(frozen=True, slots=True)
class Piece:
    """One unit that is to be done: a recipe's repetition at a target."""

    recipe: Recipe
    repeat: int
    target: Target

    @property
    def key(self) -> str:
        """Return the key of its record."""
        return unit_key(self.recipe.name, self.repeat, self.target.name)


def unit_key(workload: str, repeat: int, target: str) -> str:
    """Return the key of a unit's record."""
    return f"{workload}/{repeat}/{target}"


@dataclass(frozen=True, slots=True)
class Group:
    """Units that are done together: one, or those whose sessions are held in turn."""

    pieces: tuple[Piece, ...]
    in_turn: bool = False


def groups(run: Run, targets: Sequence[Target]) -> Iterator[Group]:
    """
    Yield every group of which a unit is not recorded.

    Of a group that is recorded in part all units are done again: requests of another time are no pairs of
    those that are missing. A workload's repetitions follow one another, in opposite orders: a machine that
    gets slower or quicker meanwhile does so for every target alike.
    """
    return (
        group
        for group in _all_groups(run, targets)
        if any(piece.key not in run.records for piece in group.pieces)
    )


def _all_groups(run: Run, targets: Sequence[Target]) -> Iterator[Group]:
    recipes = {recipe.name: recipe for recipe in load_recipes()}
    for name, amount in run.scope.items():
        if run.only and name not in run.only:
            continue
        recipe = replace(recipes[name], sessions=amount.sessions)
        for repeat, order in interleaved(targets, amount.repeats):
            asked = [target for target in order if is_asked(name, amount, target.name)]
            yield from _grouped([Piece(recipe, repeat, target) for target in asked], amount)


def _grouped(pieces: Sequence[Piece], amount: Amount) -> Iterator[Group]:
    if amount.in_turn:
        yield Group(tuple(sorted(pieces, key=partial(_place, amount))), in_turn=True)
    else:
        yield from (Group((piece,)) for piece in pieces)


def _place(amount: Amount, piece: Piece) -> int:
    """Return where a target stands in the order in which targets have their turns."""
    return amount.targets.index(piece.target.name) if amount.targets else 0


def is_asked(workload: str, amount: Amount, target: str) -> bool:
    """Say whether a target is asked a workload of which there is so much."""
    if amount.targets and target not in amount.targets:
        return False
    return target not in ONLY or workload in ONLY[target]


def recorded_units(records: RecordStore, scope: Scope, targets: Sequence[str]) -> list[Unit]:
    """Return the units that are there, by workload, then target, then repetition."""
    keys = [
        unit_key(workload, repeat, target)
        for workload, amount in scope.items()
        for target in targets
        for repeat in range(amount.repeats)
    ]
    return [Unit.from_record(records[key]) for key in keys if key in records]


async def run_all(run: Run) -> dict[str, str]:
    """
    Run what is left, and return why some routers could not be run.

    Raises:
        OutOfTime: time was over first.
        OperatingError: an engine failed.
    """
    names = [router.name for router in run.routers]
    if not list(groups(run, targets_of(dict.fromkeys(names, ""), [], ""))):
        return {}
    missing: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        settings = [_engine(run, number) for number in range(ENGINES)]
        engines = [await stack.enter_async_context(run.start(one)) for one in settings]
        origins = [str(engine.http.base_url).rstrip("/") for engine in engines]
        routers: dict[str, str] = {}
        for router in run.routers:
            try:
                routers[router.name] = await _start(stack, run, router, origins)
            except NotReady as error:
                missing[router.name] = str(error)
                run.progress.tell(f"{router.name} is not compared: {error}")
        targets = targets_of(routers, origins, run.model.name)
        http = await stack.enter_async_context(open_session())
        salt = f"evaluation-{run.progress.clock.time():.0f}"
        bench = Bench(http, run.progress.clock, salt, tuple(origins), run.settle_seconds)
        for group in groups(run, targets):
            await _do(run, bench, group, engines)
    return missing


async def _do(run: Run, bench: Bench, group: Group, engines: Sequence[Engine]) -> None:
    if run.progress.elapsed() > run.seconds_max:
        raise OutOfTime(f"{run.seconds_max:.0f} s are over; run it again to go on")
    units = [unit async for unit in bench.units(list(map(_step, group.pieces)), in_turn=group.in_turn)]
    held = sum(group_bytes(engine.pid) for engine in engines)
    for piece, unit in zip(group.pieces, units, strict=True):
        _record(run, piece, with_memory(unit, held))


def _step(piece: Piece) -> Step:
    return Step(partial(piece.recipe.make, SEED, piece.repeat), piece.target, piece.repeat)


def _record(run: Run, piece: Piece, unit: Unit) -> None:
    run.records.add(piece.key, unit.to_record())
    failed = [sample.error for sample in unit.samples if sample.error]
    said = f"{piece.key}: {len(unit.samples)} requests in {unit.seconds:.1f} s"
    run.progress.tell(f"{said}, {len(failed)} failed: {failed[0]}" if failed else said)


def with_memory(unit: Unit, held: int) -> Unit:
    """Return a unit with what the engines' processes held at its end, of which their metrics tell a part."""
    peak: Mapping[str, float] = {**unit.peak, MEMORY: float(held)} if held else unit.peak
    return replace(unit, peak=peak)


def _engine(run: Run, number: int) -> EngineSettings:
    template = run.folder / "chat_template.jinja"
    # The small model's own template leaves tools out, and agents' requests are full of them.
    template.write_text(CHAT_TEMPLATE, encoding="utf-8")
    arguments = ("--block-size", str(BLOCK_TOKENS), "--chat-template", str(template))
    return EngineSettings(
        name=f"engine-{number}", model=run.model, kv_cache_gib=KV_CACHE_GIB, arguments=arguments
    )


async def _start(stack: AsyncExitStack, run: Run, router: Router, engines: Sequence[str]) -> str:
    port = free_ports(ROUTER_PORT, 1)
    origin = f"http://{HOST}:{port}"
    log = run.folder / "logs" / f"{router.name}.log"
    command = router.command(port, engines)
    await stack.enter_async_context(running(command, log, f"{origin}/v1/models"))
    run.progress.tell(f"{router.name} is ready")
    return origin
