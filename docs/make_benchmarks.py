"""Makes `benchmarks.md` from the result files: `python -m docs.make_benchmarks`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.evaluation.model import fitted, predictions
from bench.evaluation.targets import ANY_ENGINE, HOP, NO_CACHE, PLAIN, STERNPOST
from docs.quality_tables import quality_tables
from sternpost_core.errors import OperatingError
from sternpost_gateway.bench.report import table

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "bench" / "results"
DOCUMENT: Final = ROOT / "docs" / "benchmarks.md"

HEAD: Final = """\
# Benchmarks

Made from `bench/results` by `make docs`; do not edit it. What a figure does not show stands beside it.

## Run it yourself

    make bench-quick                          # 15 minutes on two cores
    make bench                                # 90 minutes: every workload, and more of what is judged
    make bench ARGS=--save-results            # and keep the figures; then: make docs

A run that is cut short goes on where it was when it is started again. On your own endpoints and your own
traffic: [`sternpost bench`](guides/bench.md).
"""

MEANING: Final = """\
## What the figures mean, and what they do not

- **TTFT** is from sending a request to the first piece of its answer, at the client, on the machine that
  the engines run on.
- **Computed** are prompt tokens that the engine computed, by its own count; the rest came from the prefix
  cache or from the suffix store. They do not depend on the machine, and so say most about another one.
- All targets stand before the same two engines, each with one computing thread, and get the same bytes;
  answers have one length. Before each unit both engines forget their prefixes, then come three warm-up
  requests. The suffix store keeps the tails of earlier units, as it would in service.
- Where a bound is one percent (`no_reuse`, `short_chat`), each session is held at every target before the
  next begins, in changing order, and both engines forget their prefixes before each: whole units differ by
  more than that.
- `{no_cache}` is plain vLLM whose requests have a cache salt each, so that nothing is reused; `{plain}` is
  plain vLLM with its prefix cache, asked in turn. `{any_engine}` is the gateway with `layout: TailFirst`,
  which needs no plugin and lets the model read its rules first; `{sternpost}` is the gateway with the
  plugin, `layout: FixedTail`; `{hop}` is the same gateway, told to pass everything through.
- A model of 135M parameters on two cores shows proportions of work, not a GPU's times: a forward has a
  fixed cost that is large beside a short prompt, and client, router and engines share the cores.
- Reuse of a tail is an approximation. What it does to answers is in [quality](quality.md); "same answers"
  here is the share of equal greedy texts of 16 tokens, to which a single token that nearly tied is as much
  as a wrong answer.
- Memory is what both engines' processes held after the workload, the most over its repetitions. All targets
  share the engines, which keep the tails that one of them had built: it does not tell targets apart.
- Intervals are over the requests of one run on one machine. A ratio whose interval holds 1 shows no
  difference. Workloads that no bound is about run once: whatever else the machine did in that minute is in
  their times, but not in their tokens. Where two targets computed equally many and times differ, look again.
"""

LOSES: Final = """\
## Where Sternpost does not pay

- Nothing repeats: there is nothing to reuse, and the hop costs what it costs (`no_reuse`, `short_chat`).
- The prompt is nearly all new, and its tail under 256 tokens or a fifth of the prompt (`high_dynamic`).
- Messages are dropped from the front at each turn: every prefix is new (`context_trimming`). Trim at the
  end of the history, or in large steps.
- Prefixes are clean, and one engine serves them all: an engine's own prefix cache does it, without a
  gateway.
- Answers are long beside the prompt: decoding takes its time whatever became of the prompt.
- A tail's words bind closely to the middle and no match is allowed: see [quality](quality.md).
- A tail lists tools, and the model chooses one by what a message means and not by a word of it: with the
  generic means, answers of the task `tool` are lost that exact prefill has right (below).
"""

REUSED: Final = "reused share"
COMPUTED: Final = "computed share"


@dataclass(frozen=True, slots=True)
class Claimed:
    """
    A figure of the first founding article, and what stands beside it.

    `engine` names the workload and metric of the benchmark of engines alone, `served` those of the side by
    side above: a metric of its rows, or a share of the prompt that is made from two of them.
    """

    name: str
    article: str
    engine: tuple[str, str]
    served: tuple[str, str] | None


ARTICLES: Final = (
    Claimed(
        "fixed tail, time to first token",
        "0.146",
        ("fixed_tail", "ttft_ratio"),
        ("fixed_tail", "ttft_p50_ratio"),
    ),
    Claimed("five tool turns, reused from turn 3", "0.80", ("tool_turns", "reuse_share_from_turn_3"), None),
    Claimed(
        "five tool turns, reused over all turns",
        "not given",
        ("tool_turns", "reuse_share"),
        ("tool_turns", REUSED),
    ),
    Claimed(
        "five tool turns, latency",
        "0.55",
        ("tool_turns", "latency_ratio"),
        ("tool_turns", "end_to_end_p50_ratio"),
    ),
    Claimed("five tool turns, throughput at 8", "about 2", ("tool_turns_8", "throughput_ratio"), None),
    Claimed("regenerate, reused", "0.95", ("regenerate", "reuse_share"), ("regenerate", REUSED)),
    Claimed(
        "prefix, middle and tail, computed",
        "0.20",
        ("long_session", "computed_share"),
        ("long_session", COMPUTED),
    ),
    Claimed(
        "misused on dynamic prompts, time",
        "1.05 to 1.08",
        ("no_reuse", "ttft_ratio"),
        ("high_dynamic", "end_to_end_p50_ratio"),
    ),
)
"""The first founding article's figures."""

LONG_REASONING: Final = ("long reasoning with repeated prefixes, speed-up", "2 to 3", "long_reasoning")
"""The second article's figure, which this project measures against an engine without any cache."""

NOT_MEASURED: Final = "not measured"

COMMANDS: Final[Mapping[str, str]] = {
    "demo": "make demo ARGS=--save-results",
    "evaluation": "make bench ARGS=--save-results",
    "quality_further": 'make bench-quality ARGS="--tasks tool found given --report quality-further '
    '--prompts 60 --arms generic+match scaffold+match --save-results"',
}
"""How a result file is made again; the others by `make bench-NAME`."""

TARGETS: Final[Mapping[str, str]] = {
    "no_cache": NO_CACHE,
    "plain": PLAIN,
    "any_engine": ANY_ENGINE,
    "sternpost": STERNPOST,
    "hop": HOP,
}
"""The targets' names, as the text above has them."""

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Results:
    """The result files by name."""

    files: Mapping[str, Document]

    def row(
        self, name: str, workload: str, metric: str, target: str | None = None
    ) -> Mapping[str, Any] | None:
        """Return one row of one file, where there is one."""
        for row in self.files.get(name, {}).get("rows", ()):
            found = (row.get("workload"), row.get("metric"), row.get("target"))
            if found == (workload, metric, target):
                return dict(row)
        return None


def load_results(folder: Path = RESULTS) -> Results:
    """Read all result files."""
    paths = sorted(folder.glob("*.json"))
    return Results({path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths})


def render(results: Results) -> str:
    """Return the document."""
    parts = [HEAD, *_side_by_side(results)]
    parts += [MEANING.format(**TARGETS), LOSES, *_losses(results)]
    parts += [*_articles(results), *quality_tables(results.files), *_model(results)]
    parts += [*_all_files(results)]
    return "\n".join(parts)


def main() -> None:
    """Write the document."""
    DOCUMENT.write_text(render(load_results()), encoding="utf-8")


def _side_by_side(results: Results) -> Iterator[str]:
    found = results.files.get("evaluation")
    if found is None:
        yield "## Side by side\n\nNot recorded yet.\n"
        return
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    yield "## Side by side\n"
    yield f"{found['date'][:10]}, commit {found['commit']}, on {found['machine']}. {versions}.\n"
    yield "![time to first token and tokens by source](benchmarks.png)\n"
    head = ("workload", "metric", "target", "over", "bound", "measured", "95% interval", "")
    yield table(head, [_bound_row(bound) for bound in found["bounds"]]) + "\n"
    for name, about in found["workloads"].items():
        yield f"### {name}\n\n{about[0].upper()}{about[1:]}.\n"
        yield _workload_table(results, name) + "\n"
    if found["missing"]:
        yield "Not compared:\n"
        yield "\n".join(f"- {name}: {reason}" for name, reason in found["missing"].items()) + "\n"


def _bound_row(bound: Mapping[str, Any]) -> Sequence[str]:
    value = bound["value"]
    verdict = "not run" if value is None else "holds" if bound["holds"] else "missed"
    interval = "" if value is None else f"{bound['low']:.3f} to {bound['high']:.3f}"
    shown = "" if value is None else f"{value:.3f}"
    told = [bound[name] for name in ("workload", "metric", "target", "against", "bound")]
    return [*told, shown, interval, verdict]


def _workload_table(results: Results, workload: str) -> str:
    rows = results.files["evaluation"]["rows"]
    targets = dict.fromkeys(row["target"] for row in rows if row["workload"] == workload)
    head = ("target", "n", "TTFT p50 ms", "95% interval", "p95 ms", "end to end p50 ms", "between tokens ms",
            "prompt", "computed", "prefix", "suffix", "answers/s", "same answers", "memory MiB",
            "failed")  # fmt: skip
    return table(head, [_target_row(results, workload, target) for target in targets])


def _target_row(results: Results, workload: str, target: str) -> Sequence[str]:
    def cell(metric: str, form: str, factor: float = 1.0) -> str:
        row = results.row("evaluation", workload, metric, target)
        return "" if row is None else form.format(row["value"] * factor)

    ttft = results.row("evaluation", workload, "ttft_p50", target)
    assert ttft is not None, "every target that answered has this row"
    return [
        target,
        str(ttft["n"]),
        cell("ttft_p50", "{:.0f}", 1000),
        f"{ttft['low'] * 1000:.0f} to {ttft['high'] * 1000:.0f}",
        cell("ttft_p95", "{:.0f}", 1000),
        cell("end_to_end_p50", "{:.0f}", 1000),
        cell("inter_token_p50", "{:.0f}", 1000),
        cell("prompt_tokens", "{:.0f}"),
        cell("computed_tokens", "{:.0f}"),
        cell("prefix_share", "{:.2f}"),
        cell("suffix_share", "{:.2f}"),
        cell("answers_per_second", "{:.2f}"),
        cell("identical_answers", "{:.2f}"),
        cell("memory_peak", "{:.0f}", 1 / 2**20),
        cell("failed", "{:.0f}"),
    ]


def _losses(results: Results) -> Iterator[str]:
    """Yield what the run shows of it: workloads in which Sternpost's interval lies above plain vLLM."""
    rows = results.files.get("evaluation", {}).get("rows", ())
    slower = [
        f"- `{row['workload']}`: {row['value']:.2f} times ({row['low']:.2f} to {row['high']:.2f})"
        for row in rows
        if row["metric"] == "ttft_p50_ratio" and row["target"] == STERNPOST and row["low"] > 1
    ]
    yield "In this run the first token comes later than from plain vLLM, by more than the interval, in:\n"
    yield ("\n".join(slower) if slower else "- none") + "\n"


def _articles(results: Results) -> Iterator[str]:
    yield "## The founding articles' figures beside ours\n"
    rows = [_article_row(results, claimed) for claimed in ARTICLES]
    name, claimed, workload = LONG_REASONING
    bounds = results.files.get("evaluation", {}).get("bounds", ())
    found = next((one for one in bounds if one["workload"] == workload and one["value"]), None)
    ours = (
        NOT_MEASURED
        if found is None
        else f"{1 / found['value']:.2f} ({1 / found['high']:.2f} to {1 / found['low']:.2f})"
    )
    rows.append([name, claimed, NOT_MEASURED, ours])
    yield table(("figure", "article", "one engine alone", "through the gateway"), rows) + "\n"
    yield (
        "The articles name neither model nor machine for most of them; here it is the small model on this\n"
        "machine. Ratios are over plain vLLM with its prefix cache, and for long reasoning over vLLM\n"
        "without it. For dynamic prompts it is the first token of `no_reuse` on one engine, and the whole\n"
        "answer of `high_dynamic` through the gateway.\n"
    )


def _article_row(results: Results, claimed: Claimed) -> Sequence[str]:
    workload, metric = claimed.engine
    alone = _with_interval(results.row("engine", workload, metric))
    return [claimed.name, claimed.article, alone, _served(results, claimed.served)]


def _served(results: Results, place: tuple[str, str] | None) -> str:
    """Return a figure of the side by side: one of its rows, or a share of the prompt's tokens."""
    if place is None:
        return NOT_MEASURED
    workload, metric = place
    if metric not in (REUSED, COMPUTED):
        return _with_interval(results.row("evaluation", workload, metric, STERNPOST))
    computed, prompt = (
        results.row("evaluation", workload, tokens, STERNPOST)
        for tokens in ("computed_tokens", "prompt_tokens")
    )
    if computed is None or prompt is None:
        return NOT_MEASURED
    share = computed["value"] / prompt["value"]
    return f"{share if metric == COMPUTED else 1 - share:.3f}"


def _with_interval(row: Mapping[str, Any] | None) -> str:
    if row is None or row["value"] is None:
        return NOT_MEASURED
    interval = "" if row["low"] is None else f" ({row['low']:.3f} to {row['high']:.3f})"
    return f"{row['value']:.3f}{interval}"


def _model(results: Results) -> Iterator[str]:
    yield "## The planner's model beside the measurements\n"
    rows = results.files.get("evaluation", {}).get("rows", ())
    try:
        speed, found = fitted(rows), predictions(rows)
    except OperatingError as error:
        yield f"Not checked: {error}.\n"
        return
    yield (
        "Fitted to plain vLLM with and without its cache: "
        f"{speed.prefill_rate:.0f} prompt tokens per second, {speed.fixed_seconds * 1000:.0f} ms each\n"
        f"prompt, {speed.pair_seconds * 1e9:.0f} ns for each earlier token that a computed one looks at.\n"
        "Mean times to first token that this predicts where requests wait for no other:\n"
    )
    head = ("workload", "target", "predicted ms", "measured ms", "off")
    yield (
        table(
            head,
            [
                [
                    one.workload,
                    one.target,
                    f"{one.predicted * 1000:.0f}",
                    f"{one.measured * 1000:.0f}",
                    f"{one.off:+.0%}",
                ]
                for one in found
            ],
        )
        + "\n"
    )


def _all_files(results: Results) -> Iterator[str]:
    yield "## All result files\n"
    rows = [
        [
            f"[{name}](../bench/results/{name}.json)",
            str(document.get("date", ""))[:10],
            str(document.get("commit", ""))[:12],
            str(len(document.get("rows", ()))),
            f"`{COMMANDS.get(name, f'make bench-{name} ARGS=--save-results')}`",
        ]
        for name, document in results.files.items()
    ]
    yield table(("file", "date", "commit", "figures", "made by"), rows) + "\n"


if __name__ == "__main__":
    main()
