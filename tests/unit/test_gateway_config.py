"""Reading a directory of policies, and keeping up with its edits."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sternpost_core.errors import PolicyError
from sternpost_core.policy import (
    Canonicalize,
    Detector,
    Layout,
    Match,
    Policy,
    Prompt,
    Tail,
    TailSource,
    Tenancy,
    TenantSource,
    TenantSourceKind,
    VolatileAction,
    VolatileRule,
)
from sternpost_fakes.clock import FakeClock
from sternpost_fakes.gateway import eventually
from sternpost_gateway.availability import is_served, missing_features
from sternpost_gateway.config import Config, PolicyDirectory, read_config

POLL_SECONDS = 0.2

POLICY = """\
apiVersion: sternpost.dev/v1alpha1
kind: CachePolicy
metadata: {name: NAME, namespace: agents}
spec: {match: {models: [MODEL]}, poolRef: {name: qwen}}
"""

SWITCH = """\
apiVersion: sternpost.dev/v1alpha1
kind: CacheKillSwitch
metadata: {name: everything}
spec: {level: NoSuffixReads, selector: {}, reason: drill}
"""


def policy_text(name: str = "support", model: str = "qwen") -> str:
    """Return a policy file."""
    return POLICY.replace("NAME", name).replace("MODEL", model)


def faults_of(directory: Path) -> list[str]:
    """Return the paths of the faults in a directory."""
    with pytest.raises(PolicyError) as refused:
        read_config(directory)
    return [fault.path for fault in refused.value.faults]


def names(config: Config) -> list[str]:
    """Return the names of the policies in a configuration."""
    return [policy.name for policy in config.policies.policies]


@asynccontextmanager
async def watched(path: Path) -> AsyncIterator[PolicyDirectory]:
    """Watch a directory for the length of a block."""
    directory = PolicyDirectory(path, FakeClock(), lambda config: None)
    directory.load()
    task = asyncio.ensure_future(directory.watch(POLL_SECONDS))
    # The first look happens once the watch is set up.
    await asyncio.sleep(POLL_SECONDS)
    try:
        yield directory
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_files_are_read_together(tmp_path: Path) -> None:
    """All documents of all YAML files count, and nothing else."""
    (tmp_path / "a.yaml").write_text(policy_text("one", "m1") + "---\n" + SWITCH)
    (tmp_path / "b.yml").write_text(policy_text("two", "m2") + "---\n")
    (tmp_path / "notes.txt").write_text("not: [yaml")
    (tmp_path / ".hidden.yaml").write_text("not: [yaml")
    config = read_config(tmp_path)

    assert (["one", "two"], 1) == (names(config), len(config.switches))


@pytest.mark.parametrize(
    ("text", "path"),
    [
        pytest.param(policy_text().replace("poolRef", "poolref"), "a.yaml[0].spec", id="unknown-key"),
        pytest.param(
            policy_text().replace("poolRef", "prompt: {layout: Left}, poolRef"),
            "a.yaml[0].spec.prompt.layout",
            id="wrong-value",
        ),
        pytest.param(
            policy_text().replace("spec:", "metadata: {name: x}\nspec:"), "a.yaml", id="duplicate-key"
        ),
        pytest.param("a: [", "a.yaml", id="malformed"),
        pytest.param("a: !!python/object:os.system {}", "a.yaml", id="not-plain-data"),
        pytest.param("- 1", "a.yaml[0].kind", id="no-object"),
        pytest.param("kind: Secret", "a.yaml[0].kind", id="other-kind"),
    ],
)
def test_fault_names_file_and_path(tmp_path: Path, text: str, path: str) -> None:
    """A person finds the place from the message alone."""
    (tmp_path / "a.yaml").write_text(text)

    assert any(found.startswith(path) for found in faults_of(tmp_path))


def test_all_files_faults_are_told_at_once(tmp_path: Path) -> None:
    """Nobody has to mend one file to hear about the next."""
    (tmp_path / "a.yaml").write_text("a: [")
    (tmp_path / "b.yaml").write_text("kind: Secret")

    assert {"a.yaml", "b.yaml[0].kind"} <= set(faults_of(tmp_path))


def test_equal_priority_and_overlap_is_refused(tmp_path: Path) -> None:
    """Two policies that could both get a request are named, both of them."""
    (tmp_path / "a.yaml").write_text(policy_text("one") + "---\n" + policy_text("two"))

    with pytest.raises(PolicyError) as refused:
        read_config(tmp_path)
    assert "agents/one" in str(refused.value) and "agents/two" in str(refused.value)


def test_binary_and_large_files_are_refused(tmp_path: Path) -> None:
    """A file that cannot be a policy is a fault, not a crash."""
    (tmp_path / "a.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "b.yaml").write_bytes(b"#" * (1024 * 1024 + 1))
    (tmp_path / "c.yaml").symlink_to(tmp_path / "none")

    assert ["a.yaml", "b.yaml", "c.yaml"] == faults_of(tmp_path)


def test_missing_directory_is_a_fault(tmp_path: Path) -> None:
    """A directory that is not there is no empty one."""
    assert ["none"] == faults_of(tmp_path / "none")


def write_in_place(path: Path, text: str) -> None:
    """Edit a file as a careless editor does."""
    path.write_text(text)


def write_by_rename(path: Path, text: str) -> None:
    """Edit a file as a careful editor does."""
    other = path.with_name("new.tmp")
    other.write_text(text)
    os.replace(other, path)


@pytest.mark.parametrize("write", [write_in_place, write_by_rename])
async def test_edit_is_live_within_a_second(tmp_path: Path, write: Callable[[Path, str], None]) -> None:
    """However a file is written, what it says now counts soon."""
    path = tmp_path / "a.yaml"
    path.write_text(policy_text("one"))
    async with watched(tmp_path) as directory:
        write(path, policy_text("two"))

        await eventually(lambda: names(directory.config) == ["two"], seconds_max=1.0)


async def test_swapped_link_is_live_within_a_second(tmp_path: Path) -> None:
    """Kubernetes swaps a link to a directory; so does a release script."""
    for name in ("one", "two"):
        (tmp_path / f"..{name}").mkdir()
        (tmp_path / f"..{name}" / "a.yaml").write_text(policy_text(name))
    (tmp_path / "..data").symlink_to("..one")
    (tmp_path / "a.yaml").symlink_to("..data/a.yaml")
    async with watched(tmp_path) as directory:
        (tmp_path / "..new").symlink_to("..two")
        os.replace(tmp_path / "..new", tmp_path / "..data")

        await eventually(lambda: names(directory.config) == ["two"], seconds_max=1.0)


async def test_swapped_directory_is_live_within_a_second(tmp_path: Path) -> None:
    """The policy directory itself may be a link that is swapped."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.yaml").write_text(policy_text(name))
    (tmp_path / "current").symlink_to("one")
    async with watched(tmp_path / "current") as directory:
        (tmp_path / "new").symlink_to("two")
        os.replace(tmp_path / "new", tmp_path / "current")

        await eventually(lambda: names(directory.config) == ["two"], seconds_max=1.0)


async def test_bad_edit_keeps_the_last_good(tmp_path: Path) -> None:
    """A fault is shown while the old policies stay live, and goes when it is mended."""
    path = tmp_path / "a.yaml"
    path.write_text(policy_text("one"))
    async with watched(tmp_path) as directory:
        path.write_text("kind: Secret")
        await eventually(lambda: bool(directory.status.faults), seconds_max=1.0)
        kept = names(directory.config)
        path.write_text(policy_text("two"))
        await eventually(lambda: names(directory.config) == ["two"], seconds_max=1.0)

    assert (["one"], ()) == (kept, directory.status.faults)


async def test_directory_that_goes_and_comes_back(tmp_path: Path) -> None:
    """While the directory is away the last good policies stay live; unchanged, it is good again."""
    path = tmp_path / "policies"
    path.mkdir()
    (path / "a.yaml").write_text(policy_text("one"))
    async with watched(path) as directory:
        path.rename(tmp_path / "away")
        await eventually(lambda: bool(directory.status.faults), seconds_max=1.0)
        kept = names(directory.config)
        (tmp_path / "away").rename(path)
        await eventually(lambda: not directory.status.faults, seconds_max=2.0)

    assert ["one"] == kept


async def test_emptied_directory_keeps_the_last_good(tmp_path: Path) -> None:
    """An empty read is never a wish to have no policies."""
    (tmp_path / "a.yaml").write_text(policy_text("one"))
    async with watched(tmp_path) as directory:
        (tmp_path / "a.yaml").unlink()
        await eventually(lambda: bool(directory.status.faults), seconds_max=1.0)

        assert ["one"] == names(directory.config)


async def test_age_grows_while_nothing_good_is_read(tmp_path: Path) -> None:
    """The time of the last good read stands still under a fault and moves on without."""
    clock = FakeClock()
    (tmp_path / "a.yaml").write_text(policy_text("one"))
    directory = PolicyDirectory(tmp_path, clock, lambda config: None)
    directory.load()
    clock.advance(5.0)
    await directory.refresh()
    good = directory.status.read_at
    (tmp_path / "a.yaml").write_text("kind: Secret")
    clock.advance(5.0)
    await directory.refresh()
    await directory.refresh()

    assert (5.0, 5.0) == (good, directory.status.read_at)


def policy(**prompt: object) -> Policy:
    """Return a policy with a prompt of its own."""
    return Policy(name="p", pool="q", match=Match(), prompt=Prompt(**prompt))  # type: ignore[arg-type]


JWT = Policy(
    name="p", pool="q", tenancy=Tenancy(tenant_source=TenantSource(TenantSourceKind.JWT_CLAIM, "tenant"))
)


@pytest.mark.parametrize(
    ("tested", "served", "notes"),
    [
        pytest.param(policy(), True, 0, id="smallest"),
        pytest.param(policy(layout=Layout.TAIL_FIRST), True, 0, id="tail-first"),
        pytest.param(policy(tail=Tail(source=TailSource.MARKER)), True, 0, id="marker"),
        pytest.param(policy(tail=Tail(source=TailSource.LEARNED)), True, 0, id="learned"),
        pytest.param(JWT, False, 1, id="jwt-claim"),
        pytest.param(
            policy(tail=Tail(source=TailSource.LAST_SYSTEM_MESSAGE)), True, 0, id="last-system-message"
        ),
        pytest.param(policy(canonicalize=Canonicalize.PIN), True, 0, id="pin"),
        pytest.param(
            policy(
                volatile=(VolatileRule(name="c", detect=Detector.TIMESTAMP, action=VolatileAction.RELOCATE),)
            ),
            True,
            0,
            id="relocate",
        ),
    ],
)
def test_what_is_missing_is_said(tested: Policy, served: bool, notes: int) -> None:
    """What a policy asks for in vain is told when it goes live."""
    assert (served, notes) == (is_served(tested, None), len(missing_features(tested)))
