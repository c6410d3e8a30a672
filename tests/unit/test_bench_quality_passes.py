"""The engines of the quality benchmark, one after another, and what is asked of each."""

import io
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.common.engine_api import Engine
from bench.common.engine_process import EngineSettings
from bench.common.store import OutOfTime, RecordStore
from bench.demo.progress import Progress
from bench.quality.__main__ import cases_of, check_whole
from bench.quality.arms import ARMS, Serving
from bench.quality.form import Ending
from bench.quality.passes import MEANS, Probe, Run, engine_settings, keys_of, run_all
from bench.quality.summary import summarize
from bench.quality.tasks import Prompt, Split, Task
from sternpost_core.errors import OperatingError
from sternpost_fakes.bench_engine import FakeEngine, usage_of
from sternpost_fakes.clock import FakeClock

TASK = Task(
    name="pets",
    binds=False,
    tail="Say tame or wild",
    cue="It is",
    subjects={Split.TEST: {"cat": "tame", "wolf": "wild"}, Split.OWNER: {"dog": "tame"}},
    templates={Split.TEST: [], Split.OWNER: []},
    words={},
)
PROBE = Probe(
    TASK,
    prompts=(Prompt("t0", "A cat", "tame"), Prompt("t1", "A wolf", "wild")),
    owner=(Prompt("o0", "A dog", "tame"),),
)


def complete(body: dict[str, Any]) -> httpx.Response:
    """Build, answer greedily, or tell log-probabilities, as the request asks."""
    hint = body.get("kv_transfer_params", {}).get("sternpost")
    reasons = {"build": "built", "read": "hit", "off": "off"}
    usage = usage_of(suffix=2, reason=reasons[hint["op"]]) if hint else {"prompt_tokens": 100}
    wanted = body.get("logprob_token_ids", [50, 51])
    likeliest = -2.0 if hint else -2.1
    top = {f"token_id:{token}": likeliest - place / 10 for place, token in enumerate(wanted)}
    positions = body["max_tokens"]
    choice = {"token_ids": [50] * positions, "logprobs": {"top_logprobs": [top] * positions}}
    return httpx.Response(200, json={"choices": [choice], "usage": usage})


class Engines:
    """Starts fakes, and remembers which."""

    def __init__(self, means: int = MEANS) -> None:
        self.started: list[EngineSettings] = []
        self.fakes: list[FakeEngine] = []
        self._means = means

    @asynccontextmanager
    async def start(self, settings: EngineSettings) -> AsyncIterator[Engine]:
        """Give a fake engine."""
        self.started.append(settings)
        metrics = f'sternpost_suffix_means{{engine="0"}} {self._means}.0\n'
        self.fakes.append(
            FakeEngine(
                {
                    "/v1/completions": complete,
                    "/metrics": lambda body: httpx.Response(200, text=metrics),
                    "/reset_prefix_cache": lambda body: httpx.Response(200),
                }
            )
        )
        yield self.fakes[-1].client(settings.name)


def make_run(folder: Path, engines: Engines, clock: FakeClock | None = None) -> Run:
    """Return a run whose records lie in `folder`."""
    return Run(
        probes=(PROBE,),
        arms=ARMS,
        records=RecordStore(folder / "records.jsonl", "f"),
        progress=Progress(clock or FakeClock(), 0.0, io.StringIO()),
        start=engines.start,
        folder=folder,
        model=Path("model"),
        seconds_max=100.0,
    )


async def test_a_run_asks_everything_and_a_second_one_nothing(tmp_path: Path) -> None:
    """All engines run once, every arm has its readings, and the figures can be made."""
    engines = Engines()
    run = make_run(tmp_path, engines)

    await run_all(run)
    await run_all(make_run(tmp_path, engines))

    assert ["generic", "owner", "bfloat16"] == [settings.name for settings in engines.started]
    keys = [key for serving in Serving for key in keys_of(serving, run.probes, ARMS)]
    assert len(keys) == len(set(keys)) == len(run.records)
    figures = summarize({TASK.name: cases_of(run.records, PROBE, ARMS, str)})
    assert {arm.name for arm in ARMS} == {figure.arm.name for figure in figures}


async def test_a_report_of_a_run_that_is_not_whole_says_what_is_missing(tmp_path: Path) -> None:
    """Rather than fail in the middle of it; a whole run passes."""
    run = make_run(tmp_path, Engines())

    with pytest.raises(OperatingError, match=r"20 answers are not recorded, the first of them exact/t0; run"):
        check_whole(run)
    await run_all(run)
    check_whole(run)


async def test_where_an_answer_ends_is_read_from_the_exact_one(tmp_path: Path) -> None:
    """Of tasks that allow one word alone; of others nothing is held to it."""
    run = make_run(tmp_path, Engines())
    await run_all(run)
    ending = replace(PROBE, task=replace(TASK, name="found"))

    (one, _), (other, _) = (
        cases_of(run.records, probe, ARMS, {50: ";", 51: "."}.__getitem__) for probe in (ending, PROBE)
    )

    assert None is other.ending
    assert Ending(1, frozenset({1})) == one.ending


async def test_each_correction_is_built_once_and_read_by_its_arms(tmp_path: Path) -> None:
    """The owner's engine knows the task by its kind, the generic one does not."""
    engines = Engines()

    await run_all(make_run(tmp_path, engines))

    generic, owner, plain = (
        Counter(
            (hint["op"], hint["correction"], hint["kind"])
            for path, body in fake.asked
            if path == "/v1/completions" and (hint := body.get("kv_transfer_params", {}).get("sternpost"))
        )
        for fake in engines.fakes
    )
    assert (1, 1, 4, 4) == (
        generic["build", "none", ""],
        generic["build", "calibrated", ""],
        generic["read", "none", ""],
        generic["read", "calibrated", ""],
    )
    assert {("build", "calibrated", "pets"): 1, ("read", "calibrated", "pets"): 4} == owner
    assert {} == plain


async def test_only_the_wanted_arms_are_run(tmp_path: Path) -> None:
    """An engine that none of them needs is not started, and the figures are of these arms alone."""
    engines = Engines()
    wanted = tuple(arm for arm in ARMS if arm.name in ("exact", "bfloat16", "scaffold"))
    run = replace(make_run(tmp_path, engines), arms=wanted)

    await run_all(run)

    assert ["generic", "bfloat16"] == [settings.name for settings in engines.started]
    figures = summarize({TASK.name: cases_of(run.records, PROBE, wanted, str)}, wanted)
    assert set(wanted) == {figure.arm for figure in figures}


async def test_no_arm_finds_what_another_one_computed(tmp_path: Path) -> None:
    """The prefix store is emptied before each reusing arm asks; without that it would cover the tail."""
    engines = Engines()

    await run_all(make_run(tmp_path, engines))

    paths = [path for path, _ in engines.fakes[0].asked if path != "/tokenize"]
    assert 4 == paths.count("/reset_prefix_cache")
    hints = [
        "forget" if path == "/reset_prefix_cache" else body["kv_transfer_params"]["sternpost"]["op"]
        for path, body in engines.fakes[0].asked
        if path in ("/reset_prefix_cache", "/v1/completions")
    ]
    for place, hint in enumerate(hints):
        if hint == "read":
            assert hints[place - 1] in ("read", "forget")


async def test_a_run_out_of_time_keeps_its_records_and_the_next_goes_on(tmp_path: Path) -> None:
    """Nothing is asked twice."""
    engines, clock = Engines(), FakeClock(monotonic=101.0)

    with pytest.raises(OutOfTime):
        await run_all(make_run(tmp_path, engines, clock))
    assert 0 == len(RecordStore(tmp_path / "records.jsonl", "f"))

    await run_all(make_run(tmp_path, engines))
    assert ["generic", "generic", "owner", "bfloat16"] == [settings.name for settings in engines.started]


async def test_answers_that_begin_alike_are_an_error(tmp_path: Path) -> None:
    """Their first token could not tell them apart."""
    task = replace(TASK, subjects={**TASK.subjects, Split.TEST: {"cat": "so tame", "wolf": "so wild"}})
    run = replace(make_run(tmp_path, Engines()), probes=(replace(PROBE, task=task),))

    with pytest.raises(OperatingError, match="two of its answers begin with the same token"):
        await run_all(run)


async def test_the_owners_texts_are_written_as_the_engine_reads_them(tmp_path: Path) -> None:
    """One kind per task; no prompt of the test is among them."""
    await run_all(make_run(tmp_path, Engines()))

    lines = (tmp_path / "owner" / "pets.jsonl").read_text(encoding="utf-8").splitlines()

    assert [{"kind": "pets", "text": "A dog"}] == [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    ("serving", "plain", "texts"),
    [
        pytest.param(Serving.GENERIC, False, None, id="generic"),
        pytest.param(Serving.OWNER, False, "owner", id="owner"),
        pytest.param(Serving.BFLOAT16, True, None, id="bfloat16"),
    ],
)
def test_engines_differ_in_texts_and_type_alone(serving: Serving, plain: bool, texts: str | None) -> None:
    """All load the logits processor."""
    settings = engine_settings(serving, Path("model"), Path("owner"))

    assert (plain, texts) == (settings.plain, settings.plugin.get("calibration_texts"))
    assert plain == ("bfloat16" in settings.arguments)
    assert "bench.quality.processor:ForcedAnswer" in settings.arguments
