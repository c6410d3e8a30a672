"""
The errors that Sternpost raises, as one tree.

    SternpostError
    ├── InputError            what a person or a program handed us is wrong; carries every fault found
    │   ├── PolicyError       a CachePolicy, EnginePool or CacheKillSwitch object
    │   ├── SettingsError     a flag, an environment variable or a settings file
    │   ├── BodyError         the body of an HTTP request
    │   └── HintError         the request hint that travels from gateway to engine
    └── OperatingError        the surroundings failed: a file, a process, a port, a peer

Each package adds its own leaves below these and maps foreign exceptions at its border. A fault never
carries prompt text: `value` is the offending key's own value where that is configuration, and a
description of its type where it comes from a user's request.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """
    One thing that is wrong with an input.

    `path` names the key (`spec.prompt.layout`), `value` repeats what was found there, shortened, and
    `allowed` says what would have been accepted.
    """

    path: str
    value: str
    allowed: str

    def __str__(self) -> str:
        return f"{self.path}: {self.value} is not allowed; allowed: {self.allowed}"


class SternpostError(Exception):
    """Root of every error that Sternpost raises on purpose."""


class InputError(SternpostError):
    """An input is wrong; `faults` lists every fault that was found, in the order of the input."""

    def __init__(self, subject: str, faults: Iterable[Fault]) -> None:
        self.subject = subject
        self.faults = tuple(faults)
        super().__init__(f"{subject}: " + "; ".join(str(fault) for fault in self.faults))


class PolicyError(InputError):
    """A custom resource, from a file or from the API server, is wrong."""


class SettingsError(InputError):
    """A flag, an environment variable or a settings file is wrong."""


class BodyError(InputError):
    """The body of a request is wrong."""


class HintError(InputError):
    """The request hint is wrong."""


class OperatingError(SternpostError):
    """The surroundings failed; the message says what was tried and what to do."""
