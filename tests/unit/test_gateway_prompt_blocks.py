"""A prompt as the chain of blocks that an engine would hold it in."""

from __future__ import annotations

from typing import Any

import pytest

from sternpost_fakes.gateway_scene import PRESERVE, Scene, policy
from sternpost_gateway.marker import MARKER
from sternpost_gateway.prompt_blocks import BLOCK_BYTES, BLOCKS_MAX, PromptBlocks, blocks_of, held_bytes
from sternpost_gateway.receive import COMPLETIONS_PATH, RESPONSES_PATH

LONG = "north " * 400
SYSTEM = {"role": "system", "content": LONG}
TAIL = {"role": "system", "content": LONG.replace("north", "rules")}
TENANT = ((b"x-tenant-id", b"acme"),)


def user(text: str) -> dict[str, str]:
    """Return a user's message."""
    return {"role": "user", "content": text}


def hashes(messages: list[dict[str, Any]], **changes: Any) -> tuple[bytes, ...]:
    """Return the block hashes of a chat under the support policy."""
    fields = changes.pop("fields", {})
    scene = Scene(body={"model": "qwen", "messages": messages, **fields}, **changes)
    return blocks_of(scene.plan()).hashes


def common(left: tuple[bytes, ...], right: tuple[bytes, ...]) -> int:
    """Return how many hashes two prompts begin with alike."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(left), len(right)))


def test_next_turn_repeats_the_blocks_of_the_one_before() -> None:
    """All whole blocks of a turn begin the next turn, too, although the tail moves behind the new message."""
    first = hashes([SYSTEM, user(LONG), TAIL])
    second = hashes([SYSTEM, user(LONG), {"role": "assistant", "content": LONG}, TAIL, user("And east?")])

    assert len(first) >= len(LONG) * 2 // BLOCK_BYTES
    assert len(first) == common(first, second)
    assert len(second) > len(first)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"headers": ((b"x-tenant-id", b"globex"),)}, id="tenant"),
        pytest.param({"fields": {"tools": [{"type": "function", "function": {"name": "f"}}]}}, id="tools"),
        pytest.param({"fields": {"chat_template_kwargs": {"thinking": True}}}, id="template-options"),
    ],
)
def test_what_is_rendered_first_or_salts_changes_every_block(other: dict[str, Any]) -> None:
    """Nothing is shared across tenants, tools or template options."""
    messages = [SYSTEM, user("Where is north?"), TAIL]

    assert 0 == common(hashes(messages), hashes(messages, **other))


def test_block_in_the_middle_is_not_found_at_the_beginning() -> None:
    """A block's hash is that of everything before it, too."""
    assert 0 == common(hashes([SYSTEM, user("x"), TAIL]), hashes([user("y" * BLOCK_BYTES), SYSTEM, TAIL]))


def test_moved_tail_is_hashed_where_it_goes() -> None:
    """Layout TailFirst puts the tail behind the prefix, so two questions share it."""
    first = policy(prompt={"layout": "TailFirst", "tail": {"source": "LastSystemMessage"}}, suffixCache=None)
    one, other = (hashes([SYSTEM, user(text), TAIL], policy=first) for text in ("Where?", "When?"))

    assert 2 * len(LONG) // BLOCK_BYTES - 1 <= common(one, other)


def test_tail_that_is_reused_by_its_own_key_is_in_no_block() -> None:
    """A tail in the suffix store counts in bytes only: the middle in front of it always differs."""
    planned = Scene(body={"model": "qwen", "messages": [SYSTEM, user("Where?"), TAIL]}).plan()
    blocks = blocks_of(planned)

    assert len(blocks.hashes) * BLOCK_BYTES < len(LONG) + 2 * BLOCK_BYTES < blocks.prompt_bytes


def test_tail_that_is_not_reused_is_hashed_like_any_message() -> None:
    """Without a suffix cache the tail is a message at its place."""
    observing = policy(prompt=PRESERVE, suffixCache=None)

    assert len(hashes([SYSTEM, user("Where?"), TAIL], policy=observing)) >= 2 * len(LONG) // BLOCK_BYTES


def test_request_with_reuse_off_leaves_no_blocks() -> None:
    """What may not be reused is not remembered, but its size counts."""
    scene = Scene(body={"model": "qwen", "messages": [SYSTEM], "prefix_cache": False})
    blocks = blocks_of(scene.plan())

    assert ((), True) == (blocks.hashes, blocks.prompt_bytes > len(LONG))


def test_completion_is_hashed_by_its_prompt() -> None:
    """Two completions share what their prompts begin with alike."""
    one, other = (
        blocks_of(Scene(body={"model": "qwen", "prompt": LONG + end}, path=COMPLETIONS_PATH).plan()).hashes
        for end in ("a" * BLOCK_BYTES, "b" * BLOCK_BYTES)
    )

    assert len(LONG) // BLOCK_BYTES == common(one, other) < len(one)


def test_blocks_are_bounded() -> None:
    """However long a prompt is, so many blocks are remembered of it."""
    assert BLOCKS_MAX == len(hashes([user("x" * (BLOCKS_MAX + 3) * BLOCK_BYTES)]))


def test_responses_and_marked_prompts_are_cut_as_they_are_rendered() -> None:
    """Instructions come before the items, and a tail that the suffix store serves is in no block."""
    marked = policy(prompt={"tail": {"source": "Marker"}})
    items = [{"role": "user", "content": LONG}]
    response = Scene(body={"model": "qwen", "instructions": LONG, "input": items}, path=RESPONSES_PATH)
    other = Scene(body={"model": "qwen", "instructions": "x", "input": items}, path=RESPONSES_PATH)
    texts = [f"{LONG}\n{MARKER}\n{rules}" for rules in (LONG, LONG.upper())]
    prompts = [
        Scene(body={"model": "qwen", "prompt": text}, path=COMPLETIONS_PATH, policy=marked) for text in texts
    ]
    one, two = (blocks_of(scene.plan()) for scene in prompts)

    assert 0 == common(*(blocks_of(scene.plan()).hashes for scene in (response, other)))
    assert one == two and len(LONG) // BLOCK_BYTES == len(one.hashes)
    assert one.prompt_bytes > 2 * len(LONG)


@pytest.mark.parametrize(
    ("blocks", "prompt_bytes", "expected"),
    [
        pytest.param(0, 5000, 0, id="not-even-its-first-block"),
        pytest.param(3, 5000, 3 * BLOCK_BYTES + BLOCK_BYTES // 2, id="ends-in-the-middle-of-a-block"),
        pytest.param(3, 3 * BLOCK_BYTES + 10, 3 * BLOCK_BYTES + 10, id="no-more-than-there-is"),
    ],
)
def test_held_prompt_ends_in_the_middle_of_a_block(blocks: int, prompt_bytes: int, expected: int) -> None:
    """What is expected errs neither way, on average."""
    assert expected == held_bytes(blocks, PromptBlocks((b"",) * (prompt_bytes // BLOCK_BYTES), prompt_bytes))
