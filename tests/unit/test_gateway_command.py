"""The subcommand's flags, and what it says about wrong ones."""

from __future__ import annotations

import argparse
import socket
from pathlib import Path

import pytest

from sternpost_core.errors import OperatingError, SettingsError
from sternpost_gateway.command import COMMAND, settings_of
from sternpost_gateway.server import open_socket
from sternpost_gateway.settings import Cluster, Credentials


def parse(directory: Path, *flags: str) -> argparse.Namespace:
    """Parse flags, together with those that are required."""
    parser = argparse.ArgumentParser()
    COMMAND.add_arguments(parser)
    return parser.parse_args(["--policies", str(directory), "--engine", "http://engine:8000", *flags])


def test_defaults_are_complete(tmp_path: Path) -> None:
    """Policies and an engine are all that a gateway must be told."""
    settings = settings_of(parse(tmp_path))

    assert (tmp_path, ("http://engine:8000",)) == (settings.policies, settings.engines)
    assert (Credentials.FORWARD, True, None) == (
        settings.credentials,
        settings.response_headers,
        settings.admin_token,
    )


def test_flags_arrive(tmp_path: Path) -> None:
    """Each flag has its setting."""
    (tmp_path / "token").write_text("0123456789abcdef\n")
    (tmp_path / "salt").write_bytes(b"\x00" * 16)
    settings = settings_of(
        parse(
            tmp_path,
            *("--engine", "https://two"),
            *("--admin-token-file", str(tmp_path / "token")),
            *("--salt-key-file", str(tmp_path / "salt")),
            *("--engine-key-file", str(tmp_path / "token")),
            *("--credentials", "replace"),
            *("--max-body-bytes", "10", "--max-in-flight", "2", "--drain-seconds", "3"),
            *("--max-connections", "8"),
            "--no-response-headers",
        )
    )

    assert ("0123456789abcdef", b"\x00" * 16) == (settings.admin_token, settings.salt_secret)
    assert (2, 10, 2, 8) == (
        len(settings.engines),
        settings.limits.body_bytes_max,
        settings.limits.in_flight_max,
        settings.limits.connections_max,
    )
    assert (3, False) == (settings.timeouts.drain_seconds, settings.response_headers)


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    """The text of the settings, which may be logged, has no secret in it."""
    (tmp_path / "token").write_text("0123456789abcdef")
    flags = ("--admin-token-file", str(tmp_path / "token"), "--salt-key-file", str(tmp_path / "token"))

    assert "0123456789abcdef" not in repr(settings_of(parse(tmp_path, *flags)))


@pytest.mark.parametrize(
    "url",
    [
        "engine:8000",
        "ftp://engine",
        "http://",
        "http://engine/v1",
        "http://engine?x=1",
        "http://engine:0",
        "http://engine:99999",
        "http://user@engine",
        "http://10.0.0.256:8000",
        "http://☃",
        "http://xn--a",
    ],
)
def test_wrong_engine_is_named(tmp_path: Path, url: str) -> None:
    """A URL that is none of an engine is refused with what would be one."""
    with pytest.raises(SettingsError) as refused:
        settings_of(parse(tmp_path, "--engine", url))

    assert [("--engine", url)] == [(fault.path, fault.value) for fault in refused.value.faults]
    assert "http://HOST:PORT" in str(refused.value)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        pytest.param(("--policies", "nowhere"), "--policies", id="no-directory"),
        pytest.param(("--engine", "http://engine:8000"), "--engine", id="engine-twice"),
        pytest.param(("--credentials", "replace"), "--credentials", id="replace-without-key"),
    ],
)
def test_settings_that_do_not_go_together_are_named(
    tmp_path: Path, flags: tuple[str, ...], named: str
) -> None:
    """Each fault names its flag."""
    with pytest.raises(SettingsError) as refused:
        settings_of(parse(tmp_path, *flags))

    assert [named] == [fault.path for fault in refused.value.faults]


@pytest.mark.parametrize(
    ("flag", "content"),
    [
        pytest.param("--admin-token-file", b"short", id="short-token"),
        pytest.param("--admin-token-file", b"\xff" * 20, id="token-is-no-text"),
        pytest.param("--salt-key-file", b"short", id="short-salt"),
    ],
)
def test_weak_secret_is_refused(tmp_path: Path, flag: str, content: bytes) -> None:
    """A secret that could be guessed, or is none, is not taken."""
    (tmp_path / "secret").write_bytes(content)

    with pytest.raises(SettingsError, match=flag):
        settings_of(parse(tmp_path, flag, str(tmp_path / "secret")))


def test_missing_secret_file_is_named(tmp_path: Path) -> None:
    """A file that is not there is an error, not the lack of a secret."""
    with pytest.raises(OperatingError, match="--admin-token-file: there is no file"):
        settings_of(parse(tmp_path, "--admin-token-file", str(tmp_path / "none")))


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("--port", "65536"),
        ("--port", "x"),
        ("--max-in-flight", "0"),
        ("--idle-seconds", "-1"),
        ("--idle-seconds", "inf"),
        ("--credentials", "some"),
    ],
)
def test_wrong_value_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str, text: str
) -> None:
    """A value out of range ends with the usage and the flag's name."""
    with pytest.raises(SystemExit):
        parse(tmp_path, flag, text)

    assert flag in capsys.readouterr().err


def test_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    """Somebody else's port is named."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(
            OperatingError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"
        ):
            open_socket(settings_of(parse(tmp_path, "--port", str(port))))


def parse_bare(*flags: str) -> argparse.Namespace:
    """Parse nothing but these flags."""
    parser = argparse.ArgumentParser()
    COMMAND.add_arguments(parser)
    return parser.parse_args(list(flags))


def test_a_cluster_takes_the_place_of_the_directory(tmp_path: Path) -> None:
    """Without a kubeconfig the gateway is a pod; with one it may run anywhere."""
    (tmp_path / "kubeconfig").write_text("")
    flags = ("--engine", "http://engine:8000", "--kubernetes")
    within = settings_of(parse_bare(*flags))
    outside = settings_of(
        parse_bare(*flags, "--kubeconfig", str(tmp_path / "kubeconfig"), "--namespace", "agents")
    )

    assert (None, Cluster()) == (within.policies, within.cluster)
    assert Cluster(kubeconfig=tmp_path / "kubeconfig", namespace="agents") == outside.cluster


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        pytest.param((), "--policies, --kubernetes: neither", id="neither"),
        pytest.param(("--kubernetes", "--policies", "."), "--policies, --kubernetes: both", id="both"),
        pytest.param(
            ("--kubernetes", "--kubeconfig", "/no/such/file"), "--kubeconfig: /no/such/file", id="no file"
        ),
        pytest.param(("--kubernetes", "--namespace", "No Such"), "--namespace: No Such", id="no namespace"),
        pytest.param(("--policies", ".", "--namespace", "agents"), "--namespace: agents", id="no cluster"),
    ],
)
def test_where_the_objects_are_must_be_one_place(flags: tuple[str, ...], fault: str) -> None:
    """The fault names the flag, what it is, and what is allowed."""
    with pytest.raises(SettingsError, match=fault):
        settings_of(parse_bare("--engine", "http://engine:8000", *flags))
