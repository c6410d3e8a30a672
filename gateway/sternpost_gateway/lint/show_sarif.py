"""The report in SARIF 2.1.0, for what shows findings beside code."""

from __future__ import annotations

import json
from pathlib import PurePath
from typing import Any, Final
from urllib.parse import quote

from sternpost_core import __version__
from sternpost_gateway.lint.log import STANDARD_INPUT
from sternpost_gateway.lint.report import KINDS, Finding, Report

SARIF_VERSION: Final = "2.1.0"
SARIF_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"

STANDARD_INPUT_NAME: Final = "stdin"


def report_sarif(report: Report) -> str:
    """Return one run with a rule for each kind, and a result for each finding."""
    return json.dumps(
        {"$schema": SARIF_SCHEMA, "version": SARIF_VERSION, "runs": [_run(report)]},
        indent=2,
    )


def _run(report: Report) -> dict[str, Any]:
    rules = list(KINDS)
    driver = {
        "name": "sternpost lint",
        "version": __version__,
        "rules": [{"id": str(kind), "shortDescription": {"text": text}} for kind, text in KINDS.items()],
    }
    return {
        "tool": {"driver": driver},
        "results": [_result(report, finding, rules.index(finding.kind)) for finding in report.findings],
        "properties": {
            "reuse": report.reuse,
            "reuseFixed": report.reuse_fixed,
            "promptTokens": report.prompt_tokens,
            "tokensBy": report.tokens_by,
        },
    }


def _result(report: Report, finding: Finding, rule: int) -> dict[str, Any]:
    first = finding.first
    # A finding that costs nothing is worth knowing, and no more.
    level = "warning" if finding.tokens > 0 else "note"
    message = (
        f"{KINDS[finding.kind]}: {first.path} char {first.offset}, in {finding.requests} of"
        f" {report.lines.requests} requests; {finding.tokens} tokens are computed because of it."
    )
    if first.excerpt is not None:
        message += f" Text: {first.excerpt}"
    return {
        "ruleId": str(finding.kind),
        "ruleIndex": rule,
        "level": level,
        "message": {"text": message},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": _uri(first.file)},
                    "region": {"startLine": first.line},
                },
                "logicalLocations": [{"fullyQualifiedName": first.path}],
            }
        ],
        "properties": {"requests": finding.requests, "tokens": finding.tokens, "fix": finding.fix},
    }


def _uri(name: str) -> str:
    """Return a file's name as a URI reference, relative if the name is."""
    if name == STANDARD_INPUT:
        return STANDARD_INPUT_NAME
    path = PurePath(name)
    return path.as_uri() if path.is_absolute() else quote(path.as_posix())
