"""
Uses LangChain as a client: `python use_langchain.py BASE_URL MODEL`; prints what it got as one line of JSON.

It runs in the clients' own environment, so it imports nothing of this repository.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import openai
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI

MESSAGES = [HumanMessage("Name two colours.")]
TAILED = [*MESSAGES, SystemMessage("Answer in one word.")]
TOKENS = 8
SCHEMA = {
    "title": "Answer",
    "description": "A colour.",
    "type": "object",
    "properties": {"colour": {"type": "string", "enum": ["red", "blue"]}},
    "required": ["colour"],
    "additionalProperties": False,
}


def main(base_url: str, model: str) -> dict[str, Any]:
    """Ask in each of the ways that the client has."""
    chat = _chat(base_url, model)
    whole = chat.invoke(MESSAGES)
    chunks = list(chat.stream(MESSAGES, stream_usage=True))
    structured = _chat(base_url, model, max_tokens=24).with_structured_output(SCHEMA, method="json_schema")
    return {
        "whole": whole.content,
        "prompt_tokens": whole.usage_metadata["input_tokens"],
        "stream": "".join(str(chunk.content) for chunk in chunks),
        "stream_usage": [chunk.usage_metadata["input_tokens"] for chunk in chunks if chunk.usage_metadata],
        "async": asyncio.run(chat.ainvoke(MESSAGES)).content,
        "batch": [answer.content for answer in chat.batch([MESSAGES, MESSAGES])],
        "tailed": bool(chat.invoke(TAILED).content),
        "structured": sorted(structured.invoke(MESSAGES)),
        "error": _error(_chat(base_url, "no-such-model")),
    }


def _chat(base_url: str, model: str, max_tokens: int = TOKENS) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=base_url, model=model, api_key="none", temperature=0, max_tokens=max_tokens, max_retries=0
    )


def _error(chat: ChatOpenAI) -> str:
    try:
        chat.invoke(MESSAGES)
    except openai.NotFoundError as error:
        return type(error).__name__
    return "none"


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2])))
