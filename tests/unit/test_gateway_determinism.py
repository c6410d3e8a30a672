"""Canonical bytes, ids and choices are equal in every process and on every gateway."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import yaml

from sternpost_fakes.cases import CHAT, case, case_policy
from sternpost_fakes.engine import FakeEngine, running_engine
from sternpost_fakes.gateway import running_gateway

ROOT = Path(__file__).parents[2]

SOURCES = sorted([*ROOT.glob("core/**/*.py"), *ROOT.glob("gateway/**/*.py")])

SET_MAKERS = {"set", "frozenset"}


def digest(seed: str) -> str:
    """Return what another process, with this seed of Python's hashes, makes of all cases."""
    command = [sys.executable, "-m", "sternpost_fakes.case_digest"]
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def test_seeds_and_processes_change_nothing() -> None:
    """Other seeds, and other processes with seeds of their own, send the same bytes and name the same ids."""
    digests = {digest(seed) for seed in ("0", "1", "4242", "random", "random")}

    assert 1 == len(digests) and 64 == len(digests.pop().strip())


async def test_019_gateways_choose_the_same_engine(tmp_path: Path) -> None:
    """Two gateways that know nothing of each other, nor of the engines, and list these differently, agree."""
    (request,) = case("019")
    # Prompts that share nothing, so that nothing but their keys can bring them to an engine.
    bodies = [request.body, *(request.body.replace(b"You are", b"%d" % number * 999) for number in range(5))]
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(running_engine()) for _ in range(3)]
        homes = [
            [await home_of(tmp_path, body, engines, order) for order in (engines, engines[::-1])]
            for body in bodies
        ]

    assert all(one == other for one, other in homes)
    assert 1 < len({one for one, _ in homes})


async def home_of(directory: Path, body: bytes, engines: list[FakeEngine], order: list[FakeEngine]) -> int:
    """Return which engine a new gateway chooses, which has not found out yet how fast each is."""
    urls = [engine.url for engine in order]
    before = [len(engine.chats) for engine in engines]
    async with running_gateway(directory, urls, policy=yaml.safe_dump(case_policy())) as gateway:
        await gateway.client.post(CHAT, content=body)
    return next(index for index, engine in enumerate(engines) if len(engine.chats) > before[index])


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_key_depends_on_the_seed(path: Path) -> None:
    """Nothing calls `hash`, and nothing goes through a set that it has just made, whose order is chance."""
    tree = ast.parse(path.read_text(encoding="utf-8"))

    assert [] == seeded(tree)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param("hash('a')", [1], id="hash"),
        pytest.param("for x in {1, 2}: pass", [1], id="set-display"),
        pytest.param("[x for x in set(y)]", [1], id="set-call"),
        pytest.param("','.join({x for x in y})", [1], id="joined"),
        pytest.param("for x in sorted({1, 2}): pass", [], id="sorted"),
        pytest.param("1 in {1, 2}", [], id="membership"),
    ],
)
def test_rule_finds_what_depends_on_the_seed(source: str, expected: list[int]) -> None:
    """The rule sees each way, and leaves what has an order."""
    assert expected == seeded(ast.parse(source))


def seeded(tree: ast.AST) -> list[int]:
    """Return the lines on which `hash` is called, or a set made in place is gone through."""
    found: list[int] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "hash":
            found.append(node.lineno)
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension) and _is_set(node.iter):
            found.append(node.iter.lineno)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "join":
            found.extend(argument.lineno for argument in node.args if _is_set(argument))
    return found


def _is_set(node: ast.expr) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in SET_MAKERS
