"""
What a replay asks of an engine, and how the answers are read.

The prompt is answered anew on the reused KV, greedily and with the candidates of each token. Then the exact
path is given that prompt and that answer as token ids, and says what it would have thought of each token
(`prompt_logprobs`, for which vLLM reads no cache at all). Nothing depends on how the client's own answer was
sampled, and no answer of a client is ever kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sternpost_core.hint import HINT_FIELD as HINT_KEY
from sternpost_core.hint import Hint, Operation
from sternpost_core.jsonspan import apply, edit_members, scan
from sternpost_gateway.canonicalize import HINT_FIELD, SALT_FIELD
from sternpost_gateway.receive import CHAT_PATH
from sternpost_gateway.shadow.comparison import Candidates

ANSWER_TOKENS: Final = 32
"""Tokens of an answer that are compared: a wrong tail shows in the first few."""

CANDIDATES: Final = 20
"""Candidates of a token: what vLLM allows without `--max-logprobs`."""

TOKEN_PREFIX: Final = "token_id:"
"""What vLLM writes before the id of a token that it was asked to name by it."""

DROPPED_FIELDS: Final = frozenset(
    {
        "best_of",
        "echo",
        "max_completion_tokens",
        "min_tokens",
        "request_id",
        "stream_options",
        "use_beam_search",
    }
)
"""Fields of a client's that would make its replay another kind of request."""


class Unreadable(Exception):
    """An answer to a replay does not say what it was asked for."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A prompt and its answer as token ids, and the candidates of each of the answer's tokens."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    candidates: tuple[Candidates, ...]


def reused_body(body: bytes, path: str) -> bytes:
    """Return the request that has a body's prompt answered anew, as it was sent to the engine otherwise."""
    document = scan(body)
    asked = {
        "logprobs": b"true" if path == CHAT_PATH else str(CANDIDATES).encode(),
        "max_tokens": str(ANSWER_TOKENS).encode(),
        "n": b"1",
        "return_token_ids": b"true",
        "return_tokens_as_token_ids": b"true",
        "stream": b"false",
        "temperature": b"0",
    }
    if path == CHAT_PATH:
        asked["top_logprobs"] = str(CANDIDATES).encode()
    return apply(body, edit_members(document, asked, DROPPED_FIELDS))


def exact_body(model: bytes, tokens: Sequence[int], salt: str, epoch: int) -> bytes:
    """Return the request that has the exact path judge tokens; `model` is raw JSON."""
    fields = {
        "prompt": list(tokens),
        "max_tokens": 1,
        "temperature": 0,
        "prompt_logprobs": CANDIDATES,
        SALT_FIELD: salt,
        HINT_FIELD: {HINT_KEY: Hint(op=Operation.OFF, epoch=epoch).to_mapping()},
    }
    return b'{"model":' + model + b"," + json.dumps(fields).encode()[1:]


def read_reused(answer: Mapping[str, Any], path: str) -> Answered:
    """
    Read the answer to `reused_body`.

    Raises:
        Unreadable: it lacks tokens or candidates.
    """
    try:
        choice = answer["choices"][0]
        holder = answer if path == CHAT_PATH else choice
        prompt, tokens = _tokens(holder["prompt_token_ids"]), _tokens(choice["token_ids"])
        listed = _chat_candidates(choice) if path == CHAT_PATH else _text_candidates(choice)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise Unreadable(f"the replay's answer has no candidates: {type(error).__name__}") from error
    if not tokens or len(listed) != len(tokens) or not all(listed):
        raise Unreadable(
            f"the replay's answer has {len(tokens)} tokens and {len(listed)} lists of candidates"
        )
    return Answered(prompt, tokens, listed)


def read_exact(answer: Mapping[str, Any], answered: Answered) -> tuple[Candidates, ...]:
    """
    Return what the exact path thinks of each of an answer's tokens.

    Raises:
        Unreadable: it does not say so of each.
    """
    try:
        places = answer["choices"][0]["prompt_logprobs"]
        if len(places) != len(answered.prompt) + len(answered.answer):
            raise Unreadable(f"the exact path judged {len(places)} tokens")
        listed = tuple(
            {int(token): float(item["logprob"]) for token, item in place.items()}
            for place in places[len(answered.prompt) :]
        )
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise Unreadable(f"the exact path's answer has no candidates: {type(error).__name__}") from error
    if not all(listed):
        raise Unreadable("the exact path's answer leaves tokens out")
    return listed


def _chat_candidates(choice: Mapping[str, Any]) -> tuple[Candidates, ...]:
    return tuple(
        {_id(item["token"]): float(item["logprob"]) for item in place["top_logprobs"]}
        for place in choice["logprobs"]["content"]
    )


def _text_candidates(choice: Mapping[str, Any]) -> tuple[Candidates, ...]:
    return tuple(
        {_id(token): float(logprob) for token, logprob in place.items()}
        for place in choice["logprobs"]["top_logprobs"]
    )


def _id(token: str) -> int:
    if not token.startswith(TOKEN_PREFIX):
        raise ValueError("a token without its id")
    return int(token.removeprefix(TOKEN_PREFIX))


def _tokens(found: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(token) for token in found)
