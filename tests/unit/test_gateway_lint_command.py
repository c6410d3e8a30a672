"""The command: its flags, its exit status, and what it writes."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
import yaml

from sternpost_core.command import apply_environment
from sternpost_core.policy_parse import parse
from sternpost_fakes.lint_logs import RULES, chat, chats, message, write_log
from sternpost_gateway.lint.command import COMMAND

CLOCKS: Final = chats(40, lambda number: f"Now: 2026-11-29 09:00:{number:02}\n{RULES}")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a log whose requests begin with a clock."""
    return write_log(tmp_path / "log.jsonl", CLOCKS)


def parsed(arguments: Sequence[str], **environment: str) -> argparse.Namespace:
    """Return what the command makes of its arguments."""
    parser = argparse.ArgumentParser()
    COMMAND.add_arguments(parser)
    apply_environment(parser, environment)
    return parser.parse_args(arguments)


def run(*arguments: object, **environment: str) -> int:
    """Run the command and return its status."""
    return COMMAND.run(parsed([str(argument) for argument in arguments], **environment))


@pytest.mark.parametrize(
    ("flags", "status", "said"),
    [
        pytest.param([], 0, "", id="no-gate"),
        pytest.param(["--fail-under", "90"], 1, "reuse today is 0.0%, under 90.0%", id="too-little-reuse"),
        pytest.param(["--fail-under", "0"], 0, "", id="enough-reuse"),
        pytest.param(["--fail-on", "Timestamp"], 1, "there is a finding of kind Timestamp", id="finding"),
        pytest.param(["--fail-on", "Date", "--fail-on", "ToolOrder"], 0, "", id="no-such-finding"),
    ],
)
def test_gates_decide_the_status(
    log: Path, capsys: pytest.CaptureFixture[str], flags: list[str], status: int, said: str
) -> None:
    """A build fails for a reason that it prints."""
    assert status == run(log, *flags)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(b"", "no line holds a request: 0 bad lines", id="empty"),
        pytest.param(b"{\nx\n", "2 bad lines, 0 about something else; ", id="all-bad"),
        pytest.param(None, "cannot be read: No such file", id="missing"),
    ],
)
def test_nothing_to_look_at_is_status_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, said: str
) -> None:
    """So that a bad log is never taken for a bad cache, or for a good one."""
    if content is not None:
        (tmp_path / "log").write_bytes(content)

    assert 2 == run(tmp_path / "log", "--fail-under", "50")
    captured = capsys.readouterr()
    assert said in captured.err
    assert "" == captured.out


def test_the_policy_is_written_as_the_gateway_reads_it(log: Path, tmp_path: Path) -> None:
    """With its names, and with the models of the log."""
    path = tmp_path / "policy.yaml"

    assert 0 == run(log, "--write-policy", path, "--policy-name", "agents", "--pool", "qwen")
    policy = parse(yaml.safe_load(path.read_text()))
    assert ("default/agents", "qwen", ("m",)) == (policy.full_name, policy.pool, policy.match.models)


def test_no_policy_is_written_where_nothing_helps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And that is said."""
    clean = write_log(tmp_path / "log", chats(40, lambda number: RULES))

    assert 0 == run(clean, "--write-policy", tmp_path / "policy.yaml")
    assert not (tmp_path / "policy.yaml").exists()
    assert "nothing would help" in capsys.readouterr().err


def test_a_policy_that_cannot_be_written_is_an_error(log: Path, tmp_path: Path) -> None:
    """The report has been shown by then."""
    assert 2 == run(log, "--write-policy", tmp_path / "none" / "policy.yaml")


@pytest.mark.parametrize("output", ["text", "json", "sarif", "html"])
def test_every_form_goes_to_standard_output(
    log: Path, capsys: pytest.CaptureFixture[str], output: str
) -> None:
    """And nothing else does."""
    assert 0 == run(log, "--output", output)
    shown = capsys.readouterr().out
    assert "Timestamp" in shown
    if output in ("json", "sarif"):
        assert isinstance(json.loads(shown), dict)


def test_flags_may_come_from_the_environment(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As with every command."""
    assert 1 == run(log, STERNPOST_FAIL_ON="Date,Timestamp", STERNPOST_OUTPUT="json")
    assert "Timestamp" in json.loads(capsys.readouterr().out)["findings"][0]["kind"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        pytest.param(["--fail-under", "101"], "101 is not allowed; allowed: 0 to 100", id="percent"),
        pytest.param(["--price-per-mtok", "-1"], "-1 is not allowed; allowed: 0 or more", id="price"),
        pytest.param(["--block-tokens", "0"], "0 is not allowed; allowed: an integer, 1 or more", id="block"),
        pytest.param(
            ["--requests-max", "1e3"], "1e3 is not allowed; allowed: an integer, 1 or more", id="count"
        ),
        pytest.param(["--fail-under", "half"], "half is not allowed; allowed: 0 to 100", id="word"),
        pytest.param(["--format", "csv"], "csv is not allowed; allowed: bodies, batch, ", id="format"),
        pytest.param(["--policy-name", "A b"], "'A b' is not allowed; allowed: lower-case", id="name"),
        pytest.param(["--fail-on", "Clock"], "choose from", id="kind"),
        pytest.param(["--format", "csv"], "csv", id="format"),
    ],
)
def test_a_wrong_flag_says_what_is_allowed(
    capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    """Before anything is read."""
    with pytest.raises(SystemExit):
        parsed(["log", *flags])
    assert said in capsys.readouterr().err


def explained(folder: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    """Return what is said about two requests that differ by a clock."""
    for number in range(2):
        (folder / f"{number}.json").write_bytes(CLOCKS[number])
    assert 0 == run("--explain", folder / "0.json", folder / "1.json", *flags)
    return capsys.readouterr().out


def test_two_requests_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Message, place, looks, bytes and tokens."""
    shown = explained(tmp_path, capsys)

    assert "they part at messages[0] (message 0), char 23, byte 23 of it; it looks like Timestamp" in shown
    assert "alike from the start: 82 bytes of the bodies, 7 tokens of the prompts, 0 of them" in shown
    assert "2026-11-29" not in shown


def test_two_requests_are_compared_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same as JSON, with text where it is asked for."""
    found = json.loads(explained(tmp_path, capsys, "--output", "json", "--show-text"))

    assert {"path": "messages[0]", "message": 0, "char": 23, "byte": 23, "guess": "Timestamp"} == found[
        "parting"
    ]
    assert [True, True] == [side["text"][1:].strip().startswith("You are") for side in found["requests"]]


def test_equal_requests_do_not_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Even if their bodies differ in something that is no prompt."""
    for number in range(2):
        body = chat(message("user", "a"), seed=number)
        (tmp_path / f"{number}").write_text(json.dumps(body))

    assert 0 == run("--explain", tmp_path / "0", tmp_path / "1")
    assert "the prompts do not part" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("bodies", "said"),
    [
        pytest.param(["{}", "{}"], "there is no prompt that can be read", id="no-prompt"),
        pytest.param(["{", "{}"], "malformed JSON", id="no-json"),
        pytest.param(["{}"], "--explain: 1 files is not allowed; allowed: 2 files", id="one-file"),
    ],
)
def test_what_cannot_be_compared_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], bodies: list[str], said: str
) -> None:
    """With status 2."""
    files = [tmp_path / str(number) for number in range(len(bodies))]
    for file, body in zip(files, bodies, strict=True):
        file.write_text(body)

    assert 2 == run("--explain", *files)
    assert said in capsys.readouterr().err


def test_a_log_comes_down_a_pipe() -> None:
    """As a process of its own, with the console command's own parser."""
    result = subprocess.run(
        [sys.executable, "-m", "sternpost_core", "lint", "-", "--output", "json"],
        input=b"\n".join(CLOCKS),
        capture_output=True,
        env=os.environ,
        timeout=60,
        check=True,
    )

    assert 40 == json.loads(result.stdout)["lines"]["requests"]
    assert b"" == result.stderr
