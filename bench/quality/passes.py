"""
The engines, one after another, and what is asked of each.

Everything that is asked is a step with a key, and is recorded as soon as it is answered. A run that is out
of time stops between two steps; the next one goes on with the steps that are not recorded. Each engine is
started only if one of its steps is left.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.common.engine_api import Engine
from bench.common.engine_process import EngineSettings, StartEngine
from bench.common.store import OutOfTime, RecordStore
from bench.common.tails import Tail, build_tail, measure_tail
from bench.demo.progress import Progress
from bench.quality.arms import EXACT, Arm, Serving
from bench.quality.asking import LOGPROBS_MAX, Question, Reference, ask_reading, ask_reference, hint_of
from bench.quality.tasks import Prompt, Split, Task, make_prompts
from sternpost_core.errors import OperatingError
from sternpost_core.hint import Correction, Hint

CONTEXT_TOKENS: Final = 1024
"""
The engines' longest prompt. No prompt here comes near, and the calibration takes no mean over middles of
3,000 tokens, which would be most of its work and which middles of these lengths never read.
"""

BLOCK_TOKENS: Final = 32
"""The least that vLLM's CPU build computes well with: most of a prompt is found again when asked twice."""

MEANS: Final = 2
"""Means that fit into the context, per tail: at about 48 and 384 tokens of middle."""

SAMPLES: Final = 8
"""Middles per mean: the plugin's default."""

TAIL_TOKENS_MIN: Final = 64
"""The plugin's default, 256, would leave short tails alone; here they are what is measured."""

AT_ONCE: Final = 8
"""Requests in flight."""

CALIBRATION_SECONDS_MAX: Final = 600.0
POLL_SECONDS: Final = 1.0

REFERENCE: Final = "reference"
PRIOR: Final = "prior"


@dataclass(frozen=True, slots=True)
class Probe:
    """A task with its prompts, and the owner's prompts that priors and calibration come from."""

    task: Task
    prompts: tuple[Prompt, ...]
    owner: tuple[Prompt, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """
    What is asked, of which engines, where the answers go, and until when.

    `seconds_max` counts from the progress's start.
    """

    probes: tuple[Probe, ...]
    arms: tuple[Arm, ...]
    records: RecordStore
    progress: Progress
    start: StartEngine
    folder: Path
    model: Path
    seconds_max: float


def make_probes(tasks: Sequence[Task], prompts: int, owner: int, seed: int) -> tuple[Probe, ...]:
    """Make each task's prompts."""
    return tuple(
        Probe(
            task,
            make_prompts(task, Split.TEST, prompts, seed),
            make_prompts(task, Split.OWNER, owner, seed),
        )
        for task in tasks
    )


def reference_key(prompt: Prompt) -> str:
    """Return the key of a prompt's exact greedy answer."""
    return f"{REFERENCE}/{prompt.id}"


def reading_key(arm: Arm, prompt: Prompt) -> str:
    """Return the key of what an arm made of a prompt."""
    return f"{arm.name}/{prompt.id}"


def prior_key(prompt: Prompt) -> str:
    """Return the key of what the exact arm made of one of the owner's prompts."""
    return f"{PRIOR}/{prompt.id}"


def keys_of(serving: Serving, probes: Sequence[Probe], arms: Sequence[Arm]) -> list[str]:
    """Return the keys of all that is asked of one engine for these arms."""
    prompts = [prompt for probe in probes for prompt in probe.prompts]
    keys = [reading_key(arm, prompt) for arm in arms if arm.serving is serving for prompt in prompts]
    if serving is Serving.GENERIC:
        keys += [reference_key(prompt) for prompt in prompts]
        for probe in probes:
            keys += [key(prompt) for prompt in probe.owner for key in (reference_key, prior_key)]
    return keys


def missing_of(run: Run) -> list[str]:
    """Return the keys of everything that is not recorded yet, whichever engine it is asked of."""
    keys = (key for serving in Serving for key in keys_of(serving, run.probes, run.arms))
    return [key for key in keys if key not in run.records]


async def run_all(run: Run) -> None:
    """
    Ask everything that is not recorded yet.

    Raises:
        OutOfTime: time was over before all was asked.
        OperatingError: an engine failed.
    """
    for serving in Serving:
        missing = [key for key in keys_of(serving, run.probes, run.arms) if key not in run.records]
        if not missing:
            continue
        run.progress.tell(f"{serving}: {len(missing)} steps to go")
        settings = engine_settings(serving, run.model, write_owner_texts(run.probes, run.folder / "owner"))
        async with run.start(settings) as engine:
            await _Pass(run, serving, engine).ask_all()


def engine_settings(serving: Serving, model: Path, owner_texts: Path) -> EngineSettings:
    """Return how an engine is started."""
    arguments = ["--max-model-len", str(CONTEXT_TOKENS), "--max-logprobs", str(LOGPROBS_MAX)]
    arguments += ["--block-size", str(BLOCK_TOKENS)]
    arguments += ["--logits-processors", "bench.quality.processor:ForcedAnswer"]
    if serving is Serving.BFLOAT16:
        arguments += ["--dtype", "bfloat16"]
        return EngineSettings(name="bfloat16", model=model, plain=True, arguments=tuple(arguments))
    texts = {"calibration_texts": str(owner_texts)} if serving is Serving.OWNER else {}
    plugin: dict[str, Any] = {"tail_tokens_min": TAIL_TOKENS_MIN, "calibration_samples": SAMPLES, **texts}
    return EngineSettings(name=serving.name.lower(), model=model, arguments=tuple(arguments), plugin=plugin)


def write_owner_texts(probes: Sequence[Probe], folder: Path) -> Path:
    """Write the owner's prompts as texts of one kind per task, in the form that the engine reads."""
    folder.mkdir(parents=True, exist_ok=True)
    for probe in probes:
        lines = [json.dumps({"kind": probe.task.name, "text": prompt.middle}) for prompt in probe.owner]
        (folder / f"{probe.task.name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def closing_messages(task: Task) -> list[dict[str, str]]:
    """Return the messages of a task's tail: the instructions, and the answer's beginning."""
    return [{"role": "system", "content": task.tail}, {"role": "assistant", "content": task.cue}]


class _Pass:
    """All that is asked of one running engine."""

    def __init__(self, run: Run, serving: Serving, engine: Engine) -> None:
        self._run = run
        self._serving = serving
        self._engine = engine

    async def ask_all(self) -> None:
        """Ask the references first, since every reading needs them; then build what the arms read."""
        tails = {probe.task.name: await self._measure(probe.task) for probe in self._run.probes}
        answers = {probe.task.name: await self._answer_tokens(probe.task) for probe in self._run.probes}
        if self._serving is Serving.GENERIC:
            for probe in self._run.probes:
                prompts = [*probe.owner, *probe.prompts]
                await self._ask_references(prompts, tails[probe.task.name])
                tokens = answers[probe.task.name]
                await self._ask(EXACT, probe.owner, prior_key, tails[probe.task.name], tokens, "")
        built: set[Correction] = set()
        for arm in (arm for arm in self._run.arms if arm.serving is self._serving):
            if arm.correction is not None and arm.correction not in built and self._is_left(arm):
                await self._build(arm.correction, tails)
                built.add(arm.correction)
            # What other arms computed of the same prompts, exactly or not, must not serve this one.
            if arm.correction is not None:
                await self._engine.forget_prefixes()
            for probe in self._run.probes:
                name = probe.task.name
                await self._ask(
                    arm,
                    probe.prompts,
                    lambda prompt, arm=arm: reading_key(arm, prompt),  # type: ignore[misc]
                    tails[name],
                    answers[name],
                    self._kind(probe.task),
                )

    def _is_left(self, arm: Arm) -> bool:
        records = self._run.records
        prompts = [prompt for probe in self._run.probes for prompt in probe.prompts]
        return any(reading_key(arm, prompt) not in records for prompt in prompts)

    def _kind(self, task: Task) -> str:
        return task.name if self._serving is Serving.OWNER else ""

    async def _measure(self, task: Task) -> Tail:
        return await measure_tail(self._engine, task.name, closing_messages(task), continuing=True)

    async def _answer_tokens(self, task: Task) -> tuple[int, ...]:
        """Return the first token of each candidate as it stands behind the cue."""
        firsts = [(await self._engine.text_tokens(f" {answer}"))[0] for answer in task.answers]
        if len(set(firsts)) < len(firsts):
            raise OperatingError(f"task {task.name}: two of its answers begin with the same token")
        return tuple(firsts)

    async def _prompt(self, prompt: Prompt, tail: Tail) -> tuple[int, ...]:
        middle = [{"role": "user", "content": prompt.middle}]
        return await self._engine.chat_tokens(tail.conversation(middle), continuing=True)

    async def _ask_references(self, prompts: Sequence[Prompt], tail: Tail) -> None:
        async def ask(prompt: Prompt) -> Mapping[str, Any]:
            tokens = await self._prompt(prompt, tail)
            return (await ask_reference(self._engine, tokens)).to_record()

        await self._steps(f"{REFERENCE} {tail.name}", prompts, reference_key, ask)

    async def _ask(
        self,
        arm: Arm,
        prompts: Sequence[Prompt],
        key: Callable[[Prompt], str],
        tail: Tail,
        answers: tuple[int, ...],
        kind: str,
    ) -> None:
        hint: Hint | None = None if arm.serving is Serving.BFLOAT16 else hint_of(arm, tail, kind)

        async def ask(prompt: Prompt) -> Mapping[str, Any]:
            reference = Reference.from_record(self._run.records[reference_key(prompt)])
            question = Question(await self._prompt(prompt, tail), len(tail.tokens), answers)
            return (await ask_reading(self._engine, arm, question, hint, reference)).to_record()

        await self._steps(f"{arm.name}: {tail.name}", prompts, key, ask)

    async def _steps(
        self,
        title: str,
        prompts: Sequence[Prompt],
        key: Callable[[Prompt], str],
        ask: Callable[[Prompt], Awaitable[Mapping[str, Any]]],
    ) -> None:
        left = [prompt for prompt in prompts if key(prompt) not in self._run.records]
        for place in range(0, len(left), AT_ONCE):
            self._check_time()
            batch = left[place : place + AT_ONCE]
            for prompt, record in zip(batch, await asyncio.gather(*map(ask, batch)), strict=True):
                self._run.records.add(key(prompt), record)
        if left:
            self._run.progress.tell(f"{title}: {len(left)} asked")

    async def _build(self, correction: Correction, tails: Mapping[str, Tail]) -> None:
        """Build all tails, and wait until their means are there where there are to be any."""
        for probe in self._run.probes:
            await build_tail(self._engine, tails[probe.task.name], correction, self._kind(probe.task))
        if correction is Correction.NONE:
            return
        self._run.progress.tell(f"{self._serving}: calibrating {len(tails)} tails")
        try:
            async with asyncio.timeout(CALIBRATION_SECONDS_MAX):
                while await self._engine.metric("sternpost_suffix_means") < MEANS * len(tails):
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise OperatingError(f"calibration took longer than {CALIBRATION_SECONDS_MAX:.0f} s") from None
        self._run.progress.tell(f"{self._serving}: calibrated")

    def _check_time(self) -> None:
        if self._run.progress.elapsed() > self._run.seconds_max:
            raise OutOfTime(f"{self._run.seconds_max:.0f} s are over; run it again to go on")
