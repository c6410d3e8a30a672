"""The report as JSON, for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from sternpost_core.policy_write import to_mapping
from sternpost_core.template import Template
from sternpost_core.template import to_mapping as template_mapping
from sternpost_gateway.lint.report import Finding, FixEffect, Report

REPORT_VERSION: Final = 1
"""Grows when a key changes its meaning or goes."""


def report_json(report: Report) -> str:
    """Return the report; shares are from 0 to 1, money is in the price's currency."""
    return json.dumps(report_mapping(report), indent=2)


def report_mapping(report: Report) -> dict[str, Any]:
    """Return the report as what JSON can say."""
    lines = report.lines
    return {
        "version": REPORT_VERSION,
        "files": list(report.files),
        "lines": {
            "requests": lines.requests,
            "skipped": lines.skipped,
            "refused": lines.refused,
            "bad": lines.bad,
            "first_bad": [
                {"file": file, "line": line, "reason": reason} for file, line, reason in lines.named
            ],
        },
        "tokens_by": report.tokens_by,
        "cache": {
            "block_tokens": report.block_tokens,
            "tokens": report.cache_tokens,
            "tokens_asked": report.cache_tokens_asked,
        },
        "prompt_tokens": report.prompt_tokens,
        "reuse": report.reuse,
        "reuse_fixed": report.reuse_fixed,
        "saved": _amount(report, report.tokens_saved),
        "findings": [_finding(report, finding) for finding in report.findings],
        "fixes": [_fix(report, fix) for fix in report.fixes],
        "template": _template(report.template),
        "template_fixed": _template(report.template_fixed),
        "notes": list(report.notes),
        "policy": to_mapping(report.policy) if report.policy else None,
    }


def _finding(report: Report, finding: Finding) -> dict[str, Any]:
    first = finding.first
    return {
        "kind": finding.kind,
        "file": first.file,
        "line": first.line,
        "path": first.path,
        "offset": first.offset,
        **({"text": first.excerpt} if first.excerpt is not None else {}),
        "requests": finding.requests,
        "places": finding.places,
        "fix": finding.fix,
        "costs": _amount(report, finding.tokens),
        "estimated": finding.estimated,
    }


def _fix(report: Report, fix: FixEffect) -> dict[str, Any]:
    return {
        "name": fix.name,
        "advice": fix.advice,
        "reuse_alone": fix.reuse_alone,
        "reuse_without": fix.reuse_without,
        "saves": _amount(report, fix.tokens),
    }


def _amount(report: Report, tokens: int) -> dict[str, Any]:
    money = report.money(tokens)
    return {"tokens": tokens, **({"money": money} if money is not None else {})}


def _template(template: Template | None) -> Mapping[str, object] | None:
    return None if template is None else template_mapping(template)
