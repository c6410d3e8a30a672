"""The bench's workloads: made by a seed, read from files, replayed from logs and traces."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sternpost_core.errors import OperatingError, SettingsError
from sternpost_gateway.bench.recipes import WARM_UPS, Recipe, chosen, load_recipes
from sternpost_gateway.bench.replay import ReplayOptions, is_trace, load_replay
from sternpost_gateway.bench.workload import Bursts, Call, Closed, Poisson, Traced, Workload

RECIPES = {recipe.name: recipe for recipe in load_recipes()}
ENTRY: dict[str, Any] = {
    "name": "mine",
    "about": "a test",
    "shape": "conversations",
    "sessions": 2,
    "answer_tokens": 4,
    "arrivals": {"kind": "closed", "at_once": 1},
    "sizes": {"user_tokens": 10},
}
REPLAY = ReplayOptions(requests_max=10, arrivals=Closed())


def bodies(workload: Workload) -> list[str]:
    """Return the bodies of all calls, as they are sent."""
    return [json.dumps(call.body) for session in workload.sessions for call in session.calls]


def messages(call: Call) -> list[dict[str, str]]:
    """Return a call's messages."""
    found: list[dict[str, str]] = call.body["messages"]
    return found


def written(folder: Path, document: object) -> Path:
    """Write a file of workloads."""
    path = folder / "workloads.json"
    path.write_text(json.dumps(document))
    return path


PROMISED = {
    "long_reasoning": Closed,
    "long_document_qa": Closed,
    "short_chat": Closed,
    "fixed_tail": Closed,
    "tool_turns": Closed,
    "regenerate": Closed,
    "long_session": Closed,
    "high_dynamic": Closed,
    "context_trimming": Closed,
    "agent_unstable": Closed,
    "clean_shared": Bursts,
    "multi_turn_qa": Poisson,
}
"""The founding articles' data sets and scenarios, then what agents and chats send, with how they arrive."""


def test_the_built_in_workloads_are_those_that_are_promised() -> None:
    """Each by its name in the data file, with its kind of arrivals; beside them two more."""
    assert PROMISED == {name: type(RECIPES[name].arrivals) for name in PROMISED}
    assert {"agent_clean", "no_reuse"} == set(RECIPES) - set(PROMISED)


def test_tools_are_called_in_five_turns_between_a_prefix_and_a_tail() -> None:
    """Every turn has what was said before it, in order, with a call and its result for each earlier turn."""
    (session, *_) = RECIPES["tool_turns"].make(1).sessions
    turns = [messages(call) for call in session.calls]

    assert [2 + 1 + 3 * earlier for earlier in range(5)] == [len(turn) for turn in turns]
    assert 1 == len({(turn[0]["content"], turn[-1]["content"]) for turn in turns})
    assert all(one[:-1] == other[: len(one) - 1] for one, other in pairwise(turns))
    assert "Tool result: " == turns[1][3]["content"][:13]


@pytest.mark.parametrize("shared", ["clean_shared", "long_document_qa"])
def test_prompts_share_long_beginnings_and_end_differently(shared: str) -> None:
    """So that a prefix cache is all that they need."""
    calls = [call for session in RECIPES[shared].make(1).sessions for call in session.calls]
    beginnings = {messages(call)[0]["content"][:2000] for call in calls}

    assert 1 < len(beginnings) < len(calls)
    assert len(calls) == len({messages(call)[-1]["content"] for call in calls})


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_seed_makes_the_same_bytes_and_a_repetition_others(recipe: Recipe) -> None:
    """All targets get the same requests, and no repetition meets what the one before left in a cache."""
    assert bodies(recipe.make(1)) == bodies(recipe.make(1))
    assert not set(bodies(recipe.make(1))) & set(bodies(recipe.make(1, 1)))
    assert WARM_UPS == len(recipe.make(1).warm_ups)
    assert 2 == len(recipe.make(1, sessions=2).sessions)


@pytest.mark.parametrize("name", ["fixed_tail", "tool_turns", "long_session", "regenerate"])
def test_the_tail_is_one_in_all_repetitions_and_warm_ups(name: str) -> None:
    """A tail is built once, so it must not change with what stands in front of it."""
    workloads = [RECIPES[name].make(1, repeat) for repeat in range(2)]
    calls = [call for one in workloads for session in one.sessions for call in session.calls]
    calls += [call for one in workloads for call in one.warm_ups]

    assert 1 == len({messages(call)[-1]["content"] for call in calls})


def test_reasoning_goes_on_and_goes_back() -> None:
    """Each step adds to the one before, but every fourth throws two away."""
    steps = [
        messages(call)[1]["content"].split("\n")
        for call in RECIPES["long_reasoning"].make(1).sessions[0].calls[1:]
    ]

    assert [1, 2, 3, 2, 3, 4, 5, 4, 5] == [len(step) for step in steps]
    assert steps[2][:1] == steps[3][:1] and steps[2][1:] != steps[3][1:]


def test_trimming_changes_what_stands_behind_the_prefix() -> None:
    """What is dropped is the oldest, so that two turns have the prefix alone in common."""
    one, other = (messages(call) for call in RECIPES["context_trimming"].make(1).sessions[0].calls[:2])

    assert one[0] == other[0]
    assert one[1] != other[1]
    assert one[3] == other[1]


def test_only_repetitions_are_measured() -> None:
    """The first time of a request makes the state that the second one meets."""
    session = RECIPES["regenerate"].make(1).sessions[0]

    assert [False, True] == [call.measured for call in session.calls]
    assert session.calls[0].body == session.calls[1].body


def test_workloads_are_chosen_by_name_in_the_order_of_asking() -> None:
    """No name means all."""
    recipes = list(RECIPES.values())

    assert ["no_reuse", "fixed_tail"] == [one.name for one in chosen(recipes, ["no_reuse", "fixed_tail"])]
    assert recipes == chosen(recipes, [])
    with pytest.raises(SettingsError, match=r"--workload: 'nothing' is not allowed; allowed: agent_clean"):
        chosen(recipes, ["nothing"])


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        pytest.param({"kind": "closed", "at_once": 3}, Closed(3), id="closed"),
        pytest.param({"kind": "poisson", "per_second": 0.5}, Poisson(0.5), id="poisson"),
        pytest.param({"kind": "bursts", "size": 4, "seconds": 2}, Bursts(4, 2), id="bursts"),
        pytest.param({"kind": "traced"}, Traced(1.0), id="traced"),
    ],
)
def test_arrivals_are_read(entry: dict[str, Any], expected: object, tmp_path: Path) -> None:
    """A file says how sessions arrive."""
    (recipe,) = load_recipes(written(tmp_path, [{**ENTRY, "arrivals": entry}]))

    assert expected == recipe.arrivals


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        pytest.param({"shape": "circle"}, r"\$\[0\].shape: 'circle'", id="shape"),
        pytest.param({"sessions": 0}, r"\$\[0\].sessions: 0 .* from 1 to", id="no sessions"),
        pytest.param({"answer_tokens": "four"}, r"\$\[0\].answer_tokens: 'four'", id="no number"),
        pytest.param({"sizes": {"user_tokns": 3}}, r"\$\[0\].sizes.user_tokns: an unknown size", id="size"),
        pytest.param({"sizes": {"user_tokens": -1}}, r"\$\[0\].sizes.user_tokens: -1", id="negative"),
        pytest.param(
            {"shape": "documents", "sizes": {}}, r"\$\[0\].sizes.document_tokens: nothing", id="missing size"
        ),
        pytest.param({"arrivals": {"kind": "closed", "often": 2}}, r"for closed: at_once", id="arrivals"),
        pytest.param(
            {"arrivals": {"kind": "bursts", "size": 0, "seconds": 1}}, r"arrivals.size: 0", id="zero"
        ),
        pytest.param(
            {"arrivals": {"kind": "closed", "at_once": 0.5}}, r"at_once: 0.5 .* a whole number", id="half"
        ),
        pytest.param({"arrivals": "daily"}, r"arrivals: 'daily'", id="no object"),
        pytest.param({"colour": "red"}, r"an object with name, about, shape", id="unknown key"),
    ],
)
def test_a_wrong_file_is_refused_by_key_value_and_what_is_allowed(
    changes: dict[str, Any], fault: str, tmp_path: Path
) -> None:
    """Whoever wrote the file sees at once where it is wrong."""
    with pytest.raises(SettingsError, match=fault):
        load_recipes(written(tmp_path, [{**ENTRY, **changes}]))


def test_what_is_no_list_or_no_json_is_refused(tmp_path: Path) -> None:
    """The file is named."""
    with pytest.raises(SettingsError, match="an object is not allowed; allowed: a list of workloads"):
        load_recipes(written(tmp_path, {}))
    (tmp_path / "broken.json").write_text("[")
    with pytest.raises(OperatingError, match=r"broken.json cannot be read as JSON"):
        load_recipes(tmp_path / "broken.json")


def test_a_log_is_replayed_as_it_is_but_for_streaming(tmp_path: Path) -> None:
    """Only what the bench decides itself is left out; the answer may be bounded."""
    path = tmp_path / "log.jsonl"
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True, "top_p": 0.5}
    path.write_text("\n".join(json.dumps(body) for _ in range(3)))

    workload = load_replay(path, ReplayOptions(requests_max=2, arrivals=Closed(), answer_tokens=7))

    assert not is_trace(path)
    assert 2 == len(workload.sessions)
    kept = {"model": "m", "messages": body["messages"], "top_p": 0.5, "max_tokens": 7}
    assert kept == workload.sessions[0].calls[0].body


def test_equal_blocks_of_a_trace_are_equal_text(tmp_path: Path) -> None:
    """That is what the ids of a trace mean; its moments are kept where they are asked for."""
    path = tmp_path / "trace.jsonl"
    entries = [
        {"timestamp": 1000, "input_length": 600, "output_length": 9, "hash_ids": [1, 2]},
        {"timestamp": 3500, "input_length": 1024, "output_length": 9, "hash_ids": [1, 3]},
    ]
    path.write_text("\n".join(map(json.dumps, entries)))

    workload = load_replay(path, ReplayOptions(requests_max=9, arrivals=Traced(), scale=0.1))

    one, other = (messages(session.calls[0])[0]["content"] for session in workload.sessions)
    common = next(place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
    assert [1.0, 3.5] == [session.at for session in workload.sessions]
    assert common > len(one) / 2


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        pytest.param("", "no line holds a request", id="empty"),
        pytest.param("{}\n", "no line holds a request", id="no request"),
        pytest.param(
            '{"timestamp": 0, "input_length": "x", "output_length": 1, "hash_ids": [1]}',
            "log.jsonl:1: no line of a trace",
            id="a length that is none",
        ),
        pytest.param(
            '{"timestamp": 0, "input_length": Infinity, "output_length": 1, "hash_ids": [1]}',
            "log.jsonl:1: no line of a trace",
            id="a length without end",
        ),
        pytest.param(
            '{"timestamp": NaN, "input_length": 1, "output_length": 1, "hash_ids": [1]}',
            "log.jsonl:1: no line of a trace",
            id="a moment that is none",
        ),
    ],
)
def test_what_cannot_be_replayed_is_said(text: str, fault: str, tmp_path: Path) -> None:
    """The file is named, and the line."""
    path = tmp_path / "log.jsonl"
    path.write_text(text)

    with pytest.raises(OperatingError, match=fault):
        load_replay(path, REPLAY)


def test_a_log_does_not_come_at_moments_that_it_does_not_tell(tmp_path: Path) -> None:
    """All of it at once would be no replay."""
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}))

    with pytest.raises(OperatingError, match=r"'traced' is not allowed for .*log.jsonl, a log"):
        load_replay(path, replace(REPLAY, arrivals=Traced()))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Not with a traceback."""
    with pytest.raises(OperatingError, match=r"nothing.jsonl cannot be read"):
        load_replay(tmp_path / "nothing.jsonl", REPLAY)
