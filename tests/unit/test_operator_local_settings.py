"""What `sternpost up` is asked for: its children's commands, its checks, its folders, its lines."""

import argparse
import io
import os
import socket
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from sternpost_core.errors import OperatingError, SettingsError
from sternpost_core.policy_parse import parse
from sternpost_operator.local.checks import PortUse, available_bytes, check_memory, check_ports, engine_bytes
from sternpost_operator.local.child import ChildState
from sternpost_operator.local.command import COMMAND
from sternpost_operator.local.folders import Folders, default_policy_text, default_state, prepared
from sternpost_operator.local.progress import Progress, death_lines, loading_line
from sternpost_operator.local.settings import (
    UpSettings,
    check_extra,
    check_model,
    children,
    port_uses,
    ready_line,
)

FOLDERS = Folders(state=Path("/state"), policies=Path("/policies"), logs=Path("/logs"))
SETTINGS = UpSettings(
    model=Path("/models/small"),
    engines=2,
    host="127.0.0.1",
    port=8080,
    engine_port_base=8100,
    threads=1,
    folders=FOLDERS,
)


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    """Return folders that do not exist yet."""
    state = tmp_path / "state"
    return Folders(state=state, policies=state / "policies", logs=state / "logs")


@pytest.fixture
def busy_port() -> Iterator[int]:
    """Return a port that is listened on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        yield listener.getsockname()[1]


def words_after(command: tuple[str, ...], flag: str) -> list[str]:
    """Return the word after each `flag`."""
    return [command[index + 1] for index, word in enumerate(command) if word == flag]


def test_children_are_the_engines_and_then_the_gateway() -> None:
    """Each has its name, its log and its place to be asked."""
    expected = [
        ("engine-1", Path("/logs/engine-1.log"), "http://127.0.0.1:8100/health"),
        ("engine-2", Path("/logs/engine-2.log"), "http://127.0.0.1:8101/health"),
        ("gateway", Path("/logs/gateway.log"), "http://127.0.0.1:8080/readyz"),
    ]

    assert expected == [(child.name, child.log, child.ready_url) for child in children(SETTINGS)]


@pytest.mark.parametrize(
    ("number", "flag", "expected"),
    [
        pytest.param(0, "--model", ["/models/small"], id="model"),
        pytest.param(1, "--port", ["8101"], id="engines-port"),
        pytest.param(0, "--threads", ["1"], id="threads"),
        pytest.param(2, "--engine", ["http://127.0.0.1:8100", "http://127.0.0.1:8101"], id="every-engine"),
        pytest.param(2, "--port", ["8080"], id="gateways-port"),
        pytest.param(2, "--policies", ["/policies"], id="policies"),
        pytest.param(2, "--state", ["/state/gateway"], id="gateways-state"),
        pytest.param(2, "--drain-seconds", ["30"], id="ends-while-somebody-waits"),
        pytest.param(2, "--admin-token-file", ["/state/admin-token"], id="admin-token"),
    ],
)
def test_commands_carry_the_settings(number: int, flag: str, expected: list[str]) -> None:
    """Each child is given what it needs by its own flags."""
    assert expected == words_after(children(SETTINGS)[number].command, flag)


def test_further_arguments_go_to_the_engines_alone() -> None:
    """What stands after two dashes is vLLM's."""
    engine, *_, gateway = children(replace(SETTINGS, extra=("--seed", "1")))

    assert ("--", "--seed", "1") == engine.command[-3:]
    assert "--seed" not in gateway.command


@pytest.mark.parametrize("words", [pytest.param([], id="none"), pytest.param(["--seed", "1"], id="flags")])
def test_arguments_for_vllm_are_kept(words: list[str]) -> None:
    """Flags are handed on as they are."""
    assert tuple(words) == check_extra(words)


def test_stray_word_is_refused() -> None:
    """A word that is no flag would only make vLLM fail later."""
    with pytest.raises(SettingsError, match="ARGUMENT: 2 is not allowed; allowed: flags of vLLM, after --"):
        check_extra(["2"])


def test_gateway_waits_for_every_engine_and_is_well_without_one() -> None:
    """It is asked for readiness until it is ready, and only for life from then on."""
    gateway = children(SETTINGS)[-1]

    assert ("engine-1", "engine-2") == gateway.waits_for
    assert "http://127.0.0.1:8080/healthz" == gateway.live_url


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param(
            {},
            "ready: http://127.0.0.1:8080/v1 (2 engines, policies /policies, logs /logs)",
            id="two-engines",
        ),
        pytest.param(
            {"engines": 1, "host": "0.0.0.0"},
            "ready: http://127.0.0.1:8080/v1 (1 engine, policies /policies, logs /logs)",
            id="one-engine-on-every-address",
        ),
        pytest.param(
            {"host": "::1"},
            "ready: http://[::1]:8080/v1 (2 engines, policies /policies, logs /logs)",
            id="version-6",
        ),
    ],
)
def test_ready_line_has_an_address_that_works(changes: dict[str, Any], expected: str) -> None:
    """The address in the ready line can be copied as it is."""
    assert expected == ready_line(replace(SETTINGS, **changes))


def test_ports_name_their_flags() -> None:
    """Whoever must move a port learns which flag moves it."""
    uses = port_uses(SETTINGS.host, SETTINGS.port, SETTINGS.engine_ports)

    assert [("--port", 8080), ("--engine-port-base", 8100), ("--engine-port-base", 8101)] == [
        (use.flag, use.port) for use in uses
    ]


def test_busy_port_is_refused_with_its_flag(busy_port: int) -> None:
    """One error names every port that is taken."""
    uses = [PortUse("--port", "127.0.0.1", busy_port), PortUse("--engine-port-base", "127.0.0.1", busy_port)]

    with pytest.raises(SettingsError) as error_info:
        check_ports(uses)
    assert ["--port", "--engine-port-base"] == [fault.path for fault in error_info.value.faults]
    assert f"--port: {busy_port} is not allowed; allowed: a port of 127.0.0.1 that no program" in str(
        error_info.value
    )


def test_port_past_the_last_is_refused() -> None:
    """A base near the end leaves no room for all engines."""
    with pytest.raises(SettingsError, match="--engine-port-base: 65536 is not allowed; allowed: ports up to"):
        check_ports([PortUse("--engine-port-base", "127.0.0.1", 65_536)])


def test_free_ports_are_accepted() -> None:
    """A port is free as soon as nobody listens on it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    check_ports([PortUse("--port", "127.0.0.1", free)])


@pytest.mark.parametrize(
    ("engines", "available", "allowed"),
    [
        pytest.param(2, 8_000_000_000, None, id="fits"),
        pytest.param(3, 8_000_000_000, "at most 2", id="one-too-many"),
        pytest.param(1, 1, None, id="one-is-always-allowed"),
        pytest.param(2, 1, "at most 1", id="two-without-memory"),
    ],
)
def test_engines_must_fit_the_memory(engines: int, available: int, allowed: str | None) -> None:
    """More engines than fit are refused with how many would."""
    if allowed is None:
        check_memory(engines, 4_000_000_000, available)
        return
    with pytest.raises(SettingsError, match=f"--engines: {engines} is not allowed; allowed: {allowed}"):
        check_memory(engines, 4_000_000_000, available)


def test_engine_takes_its_weights_and_its_cache(tmp_path: Path) -> None:
    """The estimate grows by exactly the weights and the cache."""
    empty = engine_bytes(tmp_path, 1)
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))

    assert 1000 == engine_bytes(tmp_path, 1) - empty
    assert 1 << 30 == engine_bytes(tmp_path, 2) - engine_bytes(tmp_path, 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("MemTotal: 9 kB\nMemAvailable:   2048 kB\n", 2048 * 1024, id="kernels-estimate"),
        pytest.param("MemTotal: 9 kB\n", None, id="no-estimate"),
        pytest.param(None, None, id="no-such-file"),
    ],
)
def test_available_memory_is_the_kernels_estimate(
    text: str | None, expected: int | None, tmp_path: Path
) -> None:
    """Where the kernel says nothing, nothing is assumed."""
    if text is not None:
        (tmp_path / "meminfo").write_text(text)

    assert expected == available_bytes(tmp_path / "meminfo")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        pytest.param({"HOME": "/home/a"}, "/home/a/.local/state/sternpost/up-8080", id="home"),
        pytest.param({"XDG_STATE_HOME": "/state"}, "/state/sternpost/up-8080", id="state-folder"),
        pytest.param(
            {"HOME": "/home/a", "XDG_STATE_HOME": "state"},
            "/home/a/.local/state/sternpost/up-8080",
            id="relative-is-ignored",
        ),
    ],
)
def test_state_is_the_users_and_the_ports(environment: dict[str, str], expected: str) -> None:
    """Two on different ports do not share a state."""
    assert Path(expected) == default_state(environment, 8080)


def test_token_is_secret_and_stays(folders: Folders) -> None:
    """The admin token is readable by its owner alone, and a second start keeps it."""
    with prepared(folders, default_policies=True):
        token = folders.admin_token.read_text()
    with prepared(folders, default_policies=True):
        kept = folders.admin_token.read_text()

    assert token == kept
    assert len(token.strip()) >= 32
    assert 0o600 == stat.S_IMODE(folders.admin_token.stat().st_mode)


def test_default_policy_is_copied_once(folders: Folders) -> None:
    """A person's edits survive the next start."""
    policy = folders.policies / "default.yaml"
    with prepared(folders, default_policies=True):
        assert default_policy_text() == policy.read_text()
    policy.write_text("edited")
    with prepared(folders, default_policies=True):
        assert "edited" == policy.read_text()


def test_own_policies_are_left_alone(folders: Folders) -> None:
    """Nothing is written to a folder of policies that a person named."""
    with prepared(folders, default_policies=False):
        assert not folders.policies.exists()


def test_state_in_use_is_refused(folders: Folders) -> None:
    """Two that run at the same time need two states."""
    with (
        prepared(folders, default_policies=True),
        pytest.raises(
            SettingsError, match=r"--state: .* allowed: a folder that no running `sternpost up` uses"
        ),
        prepared(folders, default_policies=True),
    ):
        pytest.fail("both hold the same state")


def test_unusable_state_is_told(tmp_path: Path) -> None:
    """A file in the way is an error for a person, with the path."""
    (tmp_path / "file").touch()
    inside = tmp_path / "file" / "state"

    with (
        pytest.raises(OperatingError, match="cannot be prepared"),
        prepared(Folders(state=inside, policies=inside, logs=inside), default_policies=True),
    ):
        pytest.fail("a folder inside a file")


def test_default_policy_is_a_valid_policy_for_every_request() -> None:
    """What ships is accepted by the parser that the gateway uses."""
    policy = parse(yaml.safe_load(default_policy_text()))

    assert "local/default" == policy.full_name
    assert policy.suffix_cache is not None


def test_missing_model_names_the_command_that_gets_it(tmp_path: Path) -> None:
    """A folder without a model says what to do."""
    with pytest.raises(SettingsError, match=r"--model: .*/none is not allowed; .*`sternpost model fetch`"):
        check_model(tmp_path / "none")


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        pytest.param(
            {
                "engine-1": ChildState(started_at=0),
                "engine-2": ChildState(started_at=2, ready_at=5, healthy_at=5),
                "gateway": ChildState(started_at=2, ended_at=3),
            },
            "engine-1 12 s, engine-2 ready, gateway waits",
            id="loading",
        ),
        pytest.param(
            dict.fromkeys(
                ("engine-1", "engine-2", "gateway"), ChildState(started_at=1, ready_at=2, healthy_at=2)
            ),
            "",
            id="all-ready",
        ),
    ],
)
def test_moving_line_says_what_each_child_is_at(states: dict[str, ChildState], expected: str) -> None:
    """While something loads, each child shows its seconds."""
    assert expected == loading_line(children(SETTINGS), states, 12.0)


@pytest.mark.parametrize(
    ("status", "wait", "expected"),
    [
        pytest.param(1, 2.0, "engine-1: died with status 1 after 3 s; starting it again in 2 s", id="status"),
        pytest.param(
            137, 2.0, "engine-1: died with signal 9 after 3 s; starting it again in 2 s", id="signal"
        ),
        pytest.param(1, None, "engine-1: died with status 1 after 3 s", id="no-restart"),
    ],
)
def test_death_is_told_with_the_last_words(status: int, wait: float | None, expected: str) -> None:
    """One line says how and what next, the log's last lines stand below it."""
    state = ChildState(started_at=1, ended_at=4, exit_status=status)

    assert [expected, "    last words"] == death_lines("engine-1", state, ["last words"], wait)


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


def test_moving_line_is_for_terminals_alone() -> None:
    """A log file gets lines that stay, and no control characters."""
    plain, terminal = io.StringIO(), Terminal()
    for stream in (plain, terminal):
        progress = Progress(stream, io.StringIO())
        progress.show("engine-1 3 s")
        progress.tell("engine-1: ready after 3 s")

    assert "engine-1: ready after 3 s\n" == plain.getvalue()
    assert "\r\x1b[2Kengine-1 3 s\r\x1b[2Kengine-1: ready after 3 s\n" == terminal.getvalue()


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["--engines", "0"], id="no-engines"),
        pytest.param(["--engines", "65"], id="too-many-engines"),
        pytest.param(["--port", "70000"], id="port-over-the-limit"),
        pytest.param(["--engine-port-base", "x"], id="port-no-number"),
    ],
)
def test_wrong_flags_name_the_flag(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong value ends with the flag's name."""
    parser = argparse.ArgumentParser()
    COMMAND.add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(words)

    assert f"argument {words[0]}" in capsys.readouterr().err


def test_nothing_starts_when_a_port_is_taken(busy_port: int, tmp_path: Path) -> None:
    """Ports are checked before the model is fetched and before any folder is made."""
    parser = argparse.ArgumentParser()
    COMMAND.add_arguments(parser)
    state = tmp_path / "state"

    with pytest.raises(SettingsError, match="--port"):
        COMMAND.run(parser.parse_args(["--port", str(busy_port), "--state", str(state)]))
    assert not os.path.exists(state)


@pytest.mark.parametrize("flag", ["--engines", "--port", "--engine-port-base"])
def test_what_is_no_number_is_told_with_what_is_allowed(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As what is out of range is."""
    parser = argparse.ArgumentParser()
    COMMAND.add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args([flag, "two"])

    assert f"{flag}: two is not allowed; allowed: " in capsys.readouterr().err
