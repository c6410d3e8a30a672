"""Finding a tail's tokens from renderings."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.content import ContentId
from sternpost_gateway.tokens import (
    Renderings,
    Template,
    common_prefix,
    common_suffix,
    scaffold_id,
    tail_facts,
    tokenize_body,
)

TEMPLATE = Template(
    template_id=ContentId("t"),
    model=b'"qwen"',
    opening=(b'{"role":"system","content":"caf\\u00e9"}',),
    tail=b'{"content":"rules","role":"system"}',
    options=(("tools", b"[1.0]"),),
)


@pytest.mark.parametrize(
    ("renderings", "scaffold", "tail"),
    [
        pytest.param(
            Renderings([1, 2], [1, 2, 8, 9], [1, 2, 5, 8, 9], [1, 2, 6, 7, 8, 9]), (1, 2), (8, 9), id="plain"
        ),
        pytest.param(
            Renderings([1, 2, 4], [1, 2, 3, 8, 9], [1, 2, 5, 3, 8, 9], [1, 2, 6, 3, 8, 9]),
            (1, 2),
            (3, 8, 9),
            id="other-closing-before-a-tail",
        ),
        pytest.param(
            Renderings([1, 2], [1, 2, 7, 9], [1, 2, 5, 8, 9], [1, 2, 6, 8, 9]),
            (1, 2, 7),
            (9,),
            id="what-all-end-with",
        ),
    ],
)
def test_tail_is_what_all_end_with(
    renderings: Renderings, scaffold: tuple[int, ...], tail: tuple[int, ...]
) -> None:
    """The tail's tokens follow the scaffold's and are the same whatever stands between."""
    facts = tail_facts(renderings)

    assert facts is not None
    assert (scaffold, tail) == (facts.scaffold, facts.tail)
    assert scaffold_id(scaffold) == facts.scaffold_id


@pytest.mark.parametrize(
    "renderings",
    [
        pytest.param(Renderings([1], [1, 8], [1, 5, 8, 6], [1, 5, 8, 7]), id="tail-in-front"),
        pytest.param(Renderings([], [], [], []), id="nothing"),
        pytest.param(Renderings([1], [1], [1], [1]), id="no-tail"),
    ],
)
def test_unstable_tail_is_none(renderings: Renderings) -> None:
    """Where the ends differ there is no tail to store."""
    assert tail_facts(renderings) is None


def test_prefix_counts_common_tokens() -> None:
    """The prefix ends where the made-up messages begin to differ."""
    facts = tail_facts(Renderings([1, 2], [1, 2, 8], [1, 2, 5, 8], [1, 2, 6, 8]))

    assert facts is not None
    assert 2 == facts.prefix_tokens


def test_fixed_parts_enter_byte_for_byte() -> None:
    """What the client sent is rendered as it was sent, around a made-up message."""
    body = tokenize_body(TEMPLATE, "A", with_tail=True)

    assert TEMPLATE.opening[0] in body and TEMPLATE.tail in body and b'"tools":[1.0]' in body
    decoded = json.loads(body)
    assert ["system", "user", "system"] == [message["role"] for message in decoded["messages"]]
    assert ("qwen", True) == (decoded["model"], decoded["add_generation_prompt"])


def test_scaffold_ends_with_the_user_message() -> None:
    """Without the tail there is no generation prompt either."""
    decoded = json.loads(tokenize_body(TEMPLATE, "", with_tail=False))

    assert ["system", "user"] == [message["role"] for message in decoded["messages"]]
    assert not decoded["add_generation_prompt"]


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_common_parts_are_common_and_longest(left: list[int], right: list[int]) -> None:
    """The common prefix is equal on both sides and cannot be longer; so is the suffix, read backwards."""
    length = common_prefix(left, right)

    assert left[:length] == right[:length]
    assert length == min(len(left), len(right)) or left[length] != right[length]
    assert common_prefix(left[::-1], right[::-1]) == common_suffix(left, right)


def test_scaffold_ids_tell_tokens_apart() -> None:
    """Token lists of the same digits are different scaffolds."""
    assert 3 == len({scaffold_id([1, 23]), scaffold_id([12, 3]), scaffold_id([123])})


@pytest.mark.parametrize(
    ("with_tail", "prompt"),
    [
        pytest.param(True, "A\n<!-- sternpost:tail -->caf\u00e9", id="with-the-tail"),
        pytest.param(False, "A\n", id="without"),
    ],
)
def test_bare_prompt_is_one_text(with_tail: bool, prompt: str) -> None:
    """No message and no generation prompt is made of a completion; the made-up text ends its line."""
    bare = replace(
        TEMPLATE,
        tail=b'"<!-- sternpost:tail -->caf\\u00e9"',
        insert=1,
        is_bare=True,
        options=(("add_special_tokens", b"false"),),
    )
    expected = {"model": "qwen", "prompt": prompt, "add_special_tokens": False}

    assert expected == json.loads(tokenize_body(bare, "A", with_tail=with_tail))
