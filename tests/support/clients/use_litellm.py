"""
Uses LiteLLM as a client: `python use_litellm.py BASE_URL MODEL`; prints what it got as one line of JSON.

It runs in the clients' own environment, so it imports nothing of this repository.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import litellm

MESSAGES = [{"role": "user", "content": "Name two colours."}]
TOKENS = 8


def main(base_url: str, model: str) -> dict[str, Any]:
    """Ask in each of the ways that the client has."""
    common = {
        "model": f"openai/{model}",
        "api_base": base_url,
        "api_key": "none",
        "temperature": 0,
        "max_tokens": TOKENS,
    }
    whole = litellm.completion(messages=MESSAGES, **common)
    stream = litellm.completion(
        messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **common
    )
    chunks = list(stream)
    later = asyncio.run(litellm.acompletion(messages=MESSAGES, **common))
    return {
        "whole": whole.choices[0].message.content,
        "prompt_tokens": whole.usage.prompt_tokens,
        "stream": "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices),
        "stream_usage": [chunk.usage.prompt_tokens for chunk in chunks if getattr(chunk, "usage", None)],
        "async": later.choices[0].message.content,
        "error": _error({**common, "model": "openai/no-such-model"}),
    }


def _error(arguments: dict[str, Any]) -> str:
    try:
        litellm.completion(messages=MESSAGES, num_retries=0, **arguments)
    except litellm.NotFoundError as error:
        return type(error).__name__
    return "none"


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2])))
