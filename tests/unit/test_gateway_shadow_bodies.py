"""What a replay asks, and what it makes of answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sternpost_core.hint import Operation, parse_hint
from sternpost_gateway.receive import CHAT_PATH, COMPLETIONS_PATH
from sternpost_gateway.shadow.bodies import (
    CANDIDATES,
    Answered,
    Unreadable,
    exact_body,
    read_exact,
    read_reused,
    reused_body,
)

KEPT = {
    "model": "qwen",
    "messages": [{"role": "user", "content": "1e2"}],
    "cache_salt": "s",
    "kv_transfer_params": {"sternpost": {"v": 1, "op": "read"}},
    "response_format": {"type": "json_object"},
}

CHANGED = {
    "stream": True,
    "stream_options": {"include_usage": True},
    "n": 4,
    "max_completion_tokens": 900,
    "min_tokens": 700,
    "temperature": 1.3,
    "best_of": 4,
    "use_beam_search": True,
    "request_id": "mine",
    "echo": True,
}

CHAT: dict[str, Any] = {
    "prompt_token_ids": [1, 2],
    "choices": [
        {
            "token_ids": [3],
            "logprobs": {"content": [{"top_logprobs": [{"token": "token_id:3", "logprob": -0.1}]}]},
        }
    ],
}

TEXT: dict[str, Any] = {
    "choices": [
        {"prompt_token_ids": [1, 2], "token_ids": [3], "logprobs": {"top_logprobs": [{"token_id:3": -0.1}]}}
    ],
}

ANSWERED = Answered((1, 2), (3,), ({3: -0.1},))


@pytest.mark.parametrize("path", [CHAT_PATH, COMPLETIONS_PATH])
def test_replay_has_the_same_prompt_answered_greedily(path: str) -> None:
    """Prompt, salt and hint stay; what would make it a long, a sampled or a streamed answer does not."""
    body = json.loads(reused_body(json.dumps({**KEPT, **CHANGED}).encode(), path))
    expected = {
        **KEPT,
        "stream": False,
        "n": 1,
        "temperature": 0,
        "max_tokens": 32,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        **({"logprobs": True, "top_logprobs": CANDIDATES} if path == CHAT_PATH else {"logprobs": CANDIDATES}),
    }

    assert expected == body


def test_exact_path_judges_the_tokens_alone() -> None:
    """Under a salt of its own, with the suffix store off."""
    body = json.loads(exact_body(b'"qwen"', [1, 2, 3], "salt", 7))
    hint = parse_hint(body["kv_transfer_params"]["sternpost"])

    assert ("qwen", [1, 2, 3], "salt", CANDIDATES) == (
        body["model"],
        body["prompt"],
        body["cache_salt"],
        body["prompt_logprobs"],
    )
    assert (Operation.OFF, 7) == (hint.op, hint.epoch)


@pytest.mark.parametrize(
    ("answer", "path"),
    [pytest.param(CHAT, CHAT_PATH, id="chat"), pytest.param(TEXT, COMPLETIONS_PATH, id="text")],
)
def test_answer_is_read(answer: dict[str, Any], path: str) -> None:
    """Token ids of prompt and answer, and each token's candidates by id."""
    assert ANSWERED == read_reused(answer, path)


def test_exact_answer_is_read_behind_the_prompt() -> None:
    """Of all tokens that the exact path judges, the answer's are the last."""
    places = [None, {"2": {"logprob": -9.0}}, {"3": {"logprob": -0.2}, "4": {"logprob": -2.0}}]

    assert ({3: -0.2, 4: -2.0},) == read_exact({"choices": [{"prompt_logprobs": places}]}, ANSWERED)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"choices": []}, id="no-choice"),
        pytest.param({**CHAT, "prompt_token_ids": None}, id="no-prompt"),
        pytest.param({**CHAT, "choices": [{"token_ids": [], "logprobs": {"content": []}}]}, id="no-token"),
        pytest.param({**CHAT, "choices": [{"token_ids": [3], "logprobs": None}]}, id="no-candidates"),
        pytest.param({**CHAT, "choices": [{"token_ids": [3], "logprobs": {"content": []}}]}, id="too-few"),
        pytest.param(
            {
                **CHAT,
                "choices": [
                    {
                        "token_ids": [3],
                        "logprobs": {"content": [{"top_logprobs": [{"token": "x", "logprob": 0}]}]},
                    }
                ],
            },
            id="tokens-by-name",
        ),
    ],
)
def test_answer_without_candidates_is_unreadable(answer: dict[str, Any]) -> None:
    """An engine that does not say what it was asked is not taken for one that agrees."""
    with pytest.raises(Unreadable):
        read_reused(answer, CHAT_PATH)


@pytest.mark.parametrize(
    "places",
    [
        pytest.param(None, id="nothing"),
        pytest.param([None, {}], id="too-few"),
        pytest.param([None, {}, None], id="left-out"),
        pytest.param([None, {}, {}], id="empty"),
    ],
)
def test_exact_answer_without_candidates_is_unreadable(places: object) -> None:
    """Every token of the answer has to be judged."""
    with pytest.raises(Unreadable):
        read_exact({"choices": [{"prompt_logprobs": places}]}, ANSWERED)
