"""What outlives a restart: files, kill levels, epochs and versions."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from sternpost_core.content import ContentId
from sternpost_core.errors import OperatingError
from sternpost_core.kill import CacheKillSwitch, KillLevel
from sternpost_core.policy import Match, Policy
from sternpost_fakes.clock import FakeClock
from sternpost_gateway.app import SECRET_BYTES, load_secret
from sternpost_gateway.kills import LATCH_FILE, LATCHES_MAX, Kills, Latch, Source
from sternpost_gateway.settings import Settings
from sternpost_gateway.state_files import read_file, read_json, write_file
from sternpost_gateway.versions import VERSIONS_FILE, Versions

NAME = "agents/support"


def policy(level: KillLevel = KillLevel.NONE, name: str = "support") -> Policy:
    """Return a policy with a kill level of its own."""
    return Policy(name=name, namespace="agents", pool="qwen", match=Match(models=("qwen",)), kill_level=level)


def switch(
    level: KillLevel, *, namespaces: tuple[str, ...] = (), policies: tuple[str, ...] = ()
) -> CacheKillSwitch:
    """Return a kill switch."""
    return CacheKillSwitch(name="everything", level=level, namespaces=namespaces, policies=policies)


def kills(state: Path | None = None, *policies: Policy, switches: tuple[CacheKillSwitch, ...] = ()) -> Kills:
    """Return kills that know one policy, unless others are given."""
    made = Kills(FakeClock(), state)
    made.configure(policies or (policy(),), switches)
    return made


@pytest.mark.parametrize(
    ("own", "switches", "latched", "expected"),
    [
        pytest.param(KillLevel.NONE, (), None, KillLevel.NONE, id="nothing"),
        pytest.param(KillLevel.NO_REWRITE, (), None, KillLevel.NO_REWRITE, id="own"),
        pytest.param(
            KillLevel.NONE, (switch(KillLevel.NO_AFFINITY),), None, KillLevel.NO_AFFINITY, id="switch-for-all"
        ),
        pytest.param(
            KillLevel.NONE,
            (switch(KillLevel.NO_AFFINITY, namespaces=("other",)),),
            None,
            KillLevel.NONE,
            id="switch-for-others",
        ),
        pytest.param(
            KillLevel.NO_REWRITE,
            (switch(KillLevel.NO_SUFFIX_READS, policies=(NAME,)),),
            KillLevel.NEW_EPOCH,
            KillLevel.NO_REWRITE,
            id="highest-wins",
        ),
        pytest.param(KillLevel.NONE, (), KillLevel.PLAIN_PROXY, KillLevel.PLAIN_PROXY, id="latched"),
    ],
)
def test_highest_level_wins(
    own: KillLevel, switches: tuple[CacheKillSwitch, ...], latched: KillLevel | None, expected: KillLevel
) -> None:
    """Of all levels that apply to a policy the highest counts."""
    tested = kills(None, policy(own), switches=switches)
    if latched:
        tested.latch(latched, NAME, "drill", "test")

    assert expected is tested.table.level(NAME)


def test_level_for_all_counts_for_requests_without_policy() -> None:
    """A selective level is not for everybody; one for all is."""
    tested = kills()
    tested.latch(KillLevel.NO_REWRITE, NAME, "drill", "test")
    selective = tested.table.level(None)
    tested.latch(KillLevel.NO_AFFINITY, None, "drill", "test")

    assert (KillLevel.NONE, KillLevel.NO_AFFINITY) == (selective, tested.table.level(None))
    assert KillLevel.NO_AFFINITY is tested.table.level(NAME)


def test_latch_is_taken_back_by_none() -> None:
    """Setting no level takes back what was set over HTTP, and nothing else."""
    tested = kills(None, policy(KillLevel.NO_SUFFIX_READS))
    tested.latch(KillLevel.NO_REWRITE, NAME, "drill", "test")
    tested.latch(KillLevel.NONE, NAME, "over", "test")

    assert (KillLevel.NO_SUFFIX_READS, ()) == (tested.table.level(NAME), tested.latches)


def test_force_survives_a_restart(tmp_path: Path) -> None:
    """What counts at once before it does so afterwards."""
    kills(tmp_path).latch(KillLevel.NO_REWRITE, None, "drill", "test", forced=True)

    assert [True] == [latch.forced for latch in kills(tmp_path).latches]


LATCHED = (Source.HTTP, Source.FILE, Source.SIGNAL)


@pytest.mark.parametrize("cleared", LATCHED, ids=str)
@pytest.mark.parametrize("policy_name", [None, NAME], ids=["for-all", "for-one"])
def test_source_takes_back_only_what_it_set(cleared: Source, policy_name: str | None, tmp_path: Path) -> None:
    """What the others have set stays, in the running gateway and after a restart."""
    tested = kills(tmp_path)
    for source in LATCHED:
        tested.latch(KillLevel.NO_SUFFIX_READS, policy_name, "drill", "test", source)
    tested.latch(KillLevel.NONE, policy_name, "over", "test", cleared)
    left = {source for source in LATCHED if source is not cleared}

    assert left == {latch.source for latch in tested.latches}
    assert left == {latch.source for latch in kills(tmp_path).latches}
    assert KillLevel.NO_SUFFIX_READS is kills(tmp_path).table.level(NAME)


@pytest.mark.parametrize("highest", LATCHED, ids=str)
def test_highest_of_all_sources_wins(highest: Source) -> None:
    """It does not matter which source says it, or when."""
    tested = kills(None, policy(KillLevel.NO_SUFFIX_READS), switches=(switch(KillLevel.NEW_EPOCH),))
    tested.latch(KillLevel.NO_AFFINITY, None, "drill", "test", highest)
    for source in LATCHED:
        if source is not highest:
            tested.latch(KillLevel.NO_REWRITE, None, "drill", "test", source)

    assert KillLevel.NO_AFFINITY is tested.table.level(NAME)


def test_table_says_what_each_source_says() -> None:
    """Each source is there, whether it says anything or not."""
    tested = kills(None, policy(KillLevel.NO_SUFFIX_READS), switches=(switch(KillLevel.NEW_EPOCH),))
    tested.latch(KillLevel.NO_REWRITE, NAME, "drill", "test", Source.HTTP)
    tested.latch(KillLevel.NO_AFFINITY, None, "drill", "test", Source.FILE)
    expected = {
        Source.POLICY: KillLevel.NO_SUFFIX_READS,
        Source.SWITCH: KillLevel.NEW_EPOCH,
        Source.HTTP: KillLevel.NO_REWRITE,
        Source.FILE: KillLevel.NO_AFFINITY,
        Source.SIGNAL: KillLevel.NONE,
        Source.STATE: KillLevel.NONE,
    }

    assert expected == tested.table.sources[NAME]
    assert KillLevel.NONE is tested.table.sources[""][Source.HTTP]


def test_latch_is_told_with_the_table_that_it_made() -> None:
    """Who counts and shows levels hears of each, from whatever source."""
    told: list[tuple[Latch, KillLevel]] = []
    tested = Kills(FakeClock(), None, lambda latch, table: told.append((latch, table.everyone)))
    made = tested.latch(KillLevel.NEW_EPOCH, None, "drill", "test", Source.SIGNAL)

    assert [(made, KillLevel.NEW_EPOCH)] == told


def test_latches_are_bounded() -> None:
    """There is no more than one latch for each policy that can be."""
    tested = kills()
    for number in range(LATCHES_MAX):
        tested.latch(KillLevel.NO_REWRITE, f"agents/p{number}", "drill", "test")

    with pytest.raises(OperatingError):
        tested.latch(KillLevel.NO_REWRITE, "agents/more", "drill", "test")
    tested.latch(KillLevel.NO_AFFINITY, None, "drill", "test", Source.FILE)
    assert KillLevel.NO_AFFINITY is tested.table.everyone


def test_new_epoch_is_given_once_per_rise() -> None:
    """Reaching the level gives a new epoch; staying there, going higher and going back do not."""
    tested = kills()
    epochs = [tested.table.epoch(NAME)]
    for level in (
        KillLevel.NO_SUFFIX_READS,
        KillLevel.NEW_EPOCH,
        KillLevel.NO_REWRITE,
        KillLevel.NONE,
        KillLevel.NEW_EPOCH,
    ):
        tested.latch(level, NAME, "drill", "test")
        epochs.append(tested.table.epoch(NAME))

    assert [0, 0, 1, 1, 1, 2] == epochs


def test_latch_and_epoch_survive_a_restart(tmp_path: Path) -> None:
    """A restarted gateway is at the level and at an epoch that is no older."""
    kills(tmp_path).latch(KillLevel.NEW_EPOCH, NAME, "drill", "test")
    restarted = kills(tmp_path)

    assert KillLevel.NEW_EPOCH is restarted.table.level(NAME)
    assert restarted.table.epoch(NAME) >= 1
    assert ["drill"] == [latch.reason for latch in restarted.latches]


def test_latch_counts_before_the_policies_are_read(tmp_path: Path) -> None:
    """A level for all is there from the first moment of a restarted gateway."""
    kills(tmp_path).latch(KillLevel.NO_REWRITE, None, "drill", "test")

    assert KillLevel.NO_REWRITE is Kills(FakeClock(), tmp_path).table.everyone


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"{", id="no-json"),
        pytest.param(b"[]", id="no-object"),
        pytest.param(b'{"v": 1, "latches": [], "epochs": {}}', id="other-version"),
        pytest.param(b'{"v": 2, "latches": [{}], "epochs": {}}', id="half-a-latch"),
        pytest.param(b'{"v": 2, "latches": [], "epochs": []}', id="no-epochs"),
    ],
)
def test_unreadable_latch_file_stops_reads(tmp_path: Path, content: bytes) -> None:
    """What cannot be read back is never taken for nothing."""
    (tmp_path / LATCH_FILE).write_bytes(content)

    assert KillLevel.NO_SUFFIX_READS is kills(tmp_path).table.level(NAME)


def test_epochs_lost_with_the_latch_file_are_never_reached_again(tmp_path: Path) -> None:
    """KV that an earlier kill made unreachable stays so, after the next restart as well."""
    before = kills(tmp_path)
    before.latch(KillLevel.NEW_EPOCH, None, "wrong answers", "test")
    (tmp_path / LATCH_FILE).write_bytes(b"{")
    after = kills(tmp_path)
    after.latch(KillLevel.NONE, None, "looked at", "test")
    restarted = kills(tmp_path)

    assert 1 == before.table.epoch(NAME)
    assert before.table.epoch(NAME) < after.table.epoch(NAME) == restarted.table.epoch(NAME)


def test_unreadable_latch_file_is_settled_over_http(tmp_path: Path) -> None:
    """Reads are on again when somebody says so for all, and stay so after a restart."""
    (tmp_path / LATCH_FILE).write_bytes(b"{")
    tested = kills(tmp_path)
    tested.latch(KillLevel.NONE, None, "looked at", "test", Source.FILE)
    still = tested.table.level(NAME)
    tested.latch(KillLevel.NONE, None, "looked at", "test")

    assert (KillLevel.NO_SUFFIX_READS, KillLevel.NONE) == (still, tested.table.level(NAME))
    assert KillLevel.NONE is kills(tmp_path).table.level(NAME)


def test_level_counts_although_it_cannot_be_kept(tmp_path: Path) -> None:
    """Whoever set it is told that a restart would lose it."""
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    tested = kills(blocked / "state")

    with pytest.raises(OperatingError, match="cannot be written"):
        tested.latch(KillLevel.NO_SUFFIX_READS, NAME, "drill", "test")
    assert KillLevel.NO_SUFFIX_READS is tested.table.level(NAME)


def test_policy_level_at_new_epoch_counts_although_it_cannot_be_kept(tmp_path: Path) -> None:
    """A level from a file never fails on account of the state directory."""
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")

    table = kills(blocked / "state", policy(KillLevel.NEW_EPOCH)).table

    assert table.first_epoch + 1 == table.epoch(NAME)


def test_files_are_private_and_replaced_as_a_whole(tmp_path: Path) -> None:
    """A state file is for its owner only, and no other file is left beside it."""
    path = tmp_path / "deep" / "state"
    write_file(path, b"one")
    write_file(path, b"two")

    assert (b"two", [path]) == (read_file(path), list(path.parent.iterdir()))
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)


def test_missing_file_is_no_error(tmp_path: Path) -> None:
    """The first start has no state."""
    assert (None, None) == (read_file(tmp_path / "none"), read_json(tmp_path / "none"))


def test_directory_in_the_place_of_a_file_is_an_error(tmp_path: Path) -> None:
    """What is there but cannot be read is never taken for nothing."""
    with pytest.raises(OperatingError, match="cannot be read"):
        read_file(tmp_path)


async def test_versions_are_numbered_in_order_of_first_use(tmp_path: Path) -> None:
    """Each policy counts its prefixes and tails by itself, and goes on after a restart."""
    versions = Versions(tmp_path)
    found = [versions.version(NAME, "prefix", ContentId(name)) for name in ("a", "b", "a")] + [
        versions.version(NAME, "tail", ContentId("a")),
        versions.version("agents/other", "prefix", ContentId("b")),
    ]
    await versions.save()
    restarted = Versions(tmp_path)

    assert [1, 2, 1, 1, 1] == found
    assert [2, 3] == [restarted.version(NAME, "prefix", ContentId(name)) for name in ("b", "c")]


async def test_unchanged_versions_are_not_written(tmp_path: Path) -> None:
    """Looking at a version is no reason to write."""
    versions = Versions(tmp_path)
    versions.version(NAME, "prefix", ContentId("a"))
    await versions.save()
    (tmp_path / VERSIONS_FILE).unlink()
    versions.version(NAME, "prefix", ContentId("a"))
    await versions.save()

    assert not (tmp_path / VERSIONS_FILE).exists()


@pytest.mark.parametrize("content", [b"{", b'{"series": [1]}', b'{"series": [["p", "tail", "x", []]]}'])
def test_unreadable_versions_start_anew(tmp_path: Path, content: bytes) -> None:
    """Versions are names for people: losing them stops nothing."""
    (tmp_path / VERSIONS_FILE).write_bytes(content)

    assert 1 == Versions(tmp_path).version(NAME, "prefix", ContentId("a"))


async def test_versions_that_cannot_be_written_are_tried_again(tmp_path: Path) -> None:
    """A full disk costs nothing once there is room again."""
    blocked = tmp_path / "state"
    blocked.write_bytes(b"")
    versions = Versions(blocked / "deep")
    versions.version(NAME, "prefix", ContentId("a"))
    await versions.save()
    blocked.unlink()
    await versions.save()

    assert (blocked / "deep" / VERSIONS_FILE).exists()


def test_secret_is_made_once(tmp_path: Path) -> None:
    """The salt secret is made at the first start and kept for all others."""
    settings = Settings(policies=tmp_path, engines=(), state=tmp_path)
    secret = load_secret(settings)

    assert (SECRET_BYTES, secret) == (len(secret), load_secret(settings))


def test_secret_without_state_is_not_kept(tmp_path: Path) -> None:
    """Without a place to keep it each start has its own secret."""
    settings = Settings(policies=tmp_path, engines=())

    assert load_secret(settings) != load_secret(settings)


def test_damaged_secret_is_an_error(tmp_path: Path) -> None:
    """A secret that has become too short is not used."""
    (tmp_path / "salt.key").write_bytes(b"x")

    with pytest.raises(OperatingError, match="fewer than"):
        load_secret(Settings(policies=tmp_path, engines=(), state=tmp_path))
