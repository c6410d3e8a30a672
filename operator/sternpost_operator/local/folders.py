"""
The folders of `sternpost up`: where state, logs and policies lie, and what is put there at the start.

    STATE/lock              held while `up` runs, so that two do not share one state
    STATE/admin-token       the secret of the gateway's admin paths, readable by its owner alone
    STATE/policies/         the default policies, to be edited; only where no other folder is named
    STATE/logs/             one log for each child; only where no other folder is named
    STATE/gateway/          the gateway's own state
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

from sternpost_core.errors import Fault, OperatingError, SettingsError

TOKEN_BYTES: Final = 32

DEFAULT_POLICY: Final = "default.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """Where everything of one `up` lies."""

    state: Path
    policies: Path
    logs: Path

    @property
    def gateway_state(self) -> Path:
        """The gateway's own state."""
        return self.state / "gateway"

    @property
    def admin_token(self) -> Path:
        """The file with the secret of the gateway's admin paths."""
        return self.state / "admin-token"


def default_state(environment: Mapping[str, str], port: int) -> Path:
    """Return the state folder of this user's `up` on `port`."""
    state = environment.get("XDG_STATE_HOME", "")
    # The base directory specification says to ignore a relative path.
    base = (
        Path(state) if os.path.isabs(state) else Path(environment.get("HOME") or Path.home()) / ".local/state"
    )
    return base / "sternpost" / f"up-{port}"


@contextlib.contextmanager
def prepared(folders: Folders, *, default_policies: bool) -> Iterator[None]:
    """
    Make the folders and their files, and hold the state's lock; existing files are kept as they are.

    Raises:
        SettingsError: when the state is another's who runs now.
        OperatingError: when something cannot be written.
    """
    try:
        folders.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (folders.state / "lock").open("w") as lock:
            _hold(lock.fileno(), folders.state)
            _fill(folders, default_policies=default_policies)
            yield
    except OSError as error:
        raise OperatingError(f"{folders.state}: cannot be prepared: {error}") from error


def _hold(descriptor: int, state: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        allowed = "a folder that no running `sternpost up` uses"
        raise SettingsError("folders", [Fault("--state", str(state), allowed)]) from error


def _fill(folders: Folders, *, default_policies: bool) -> None:
    folders.logs.mkdir(parents=True, exist_ok=True)
    folders.gateway_state.mkdir(exist_ok=True, mode=0o700)
    _write_token(folders.admin_token)
    if default_policies:
        folders.policies.mkdir(parents=True, exist_ok=True)
        _write_default_policy(folders.policies / DEFAULT_POLICY)


def _write_token(path: Path) -> None:
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(TOKEN_BYTES) + "\n")


def _write_default_policy(path: Path) -> None:
    if not path.exists():
        path.write_text(default_policy_text(), encoding="utf-8")


def default_policy_text() -> str:
    """Return the default policy as it ships."""
    return (files(__package__) / "default_policies" / DEFAULT_POLICY).read_text(encoding="utf-8")
