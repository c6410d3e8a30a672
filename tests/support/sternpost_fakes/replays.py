"""What a scripted engine says of tokens: the candidates of each, as vLLM writes them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

SURE = 0.9
"""The probability of the token that comes next, on the exact path."""

OTHER = 1_000_000
"""A token that no prompt has: what wrong KV prefers."""


def candidates(token: int, *, wrong: bool = False) -> dict[int, float]:
    """Return the candidates of one place; with `wrong` KV another token is the first choice."""
    sure = 1.0 - SURE if wrong else SURE
    return {token: math.log(sure), OTHER: math.log(1.0 - sure)}


def with_candidates(
    answer: dict[str, Any],
    body: Mapping[str, Any],
    prompt: Sequence[int],
    tokens: Sequence[int],
    *,
    wrong: bool,
) -> dict[str, Any]:
    """Return an answer with what a body asks for: token ids, candidates, those of the prompt included."""
    choice = answer["choices"][0]
    is_chat = answer["object"] == "chat.completion"
    if body.get("return_token_ids"):
        choice["token_ids"] = list(tokens)
        (answer if is_chat else choice)["prompt_token_ids"] = list(prompt)
        places = [
            {f"token_id:{name}": logprob for name, logprob in candidates(token, wrong=wrong).items()}
            for token in tokens
        ]
        choice["logprobs"] = _chat_logprobs(places) if is_chat else {"top_logprobs": places}
    if "prompt_logprobs" in body:
        choice["prompt_logprobs"] = [None, *(_place(token) for token in prompt[1:])]
    return answer


def _chat_logprobs(places: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    return {
        "content": [
            {"top_logprobs": [{"token": token, "logprob": logprob} for token, logprob in place.items()]}
            for place in places
        ]
    }


def _place(token: int) -> dict[str, Any]:
    return {str(name): {"logprob": logprob} for name, logprob in candidates(token).items()}
