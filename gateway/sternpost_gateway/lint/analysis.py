"""
From a log to a report, in two passes: the first finds what differs, the second tries what would help.

A fix is proposed only if the simulation says that it saves something.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sternpost_core.policy import Detector, Layout, Policy
from sternpost_core.template import STABLE_PROMPTS_MIN, STABLE_SHARE, Template
from sternpost_gateway.lint.fixes import (
    PIN,
    TAIL,
    Fix,
    PolicyNames,
    detector_fix,
    pin_fix,
    policy_of,
    tail_fix,
)
from sternpost_gateway.lint.log import LineCounts, Log
from sternpost_gateway.lint.prompt import Prompts
from sternpost_gateway.lint.report import FIXED_TAIL, Finding, FixEffect, Lines, Report
from sternpost_gateway.lint.simulate import TAIL_TOKENS_MIN, CacheShape, Simulation, Tally
from sternpost_gateway.lint.survey import Sighting, Survey

Advance = Callable[[str, int], None]
"""Takes the name of a pass and the bytes that it has read on top."""

LINE_CHARS_MIN: Final = 128
"""Characters of a line behind a volatile span that are worth a line of their own."""

FIRST_PASS = "looking"
SECOND_PASS = "simulating"
THIRD_PASS = "checking"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a log is looked at; with `plain_engine`, only what needs no plugin is proposed."""

    shape: CacheShape
    names: PolicyNames
    plain_engine: bool = False
    show_text: bool = False
    price: float | None = None


@dataclass(frozen=True, slots=True)
class _Tried:
    """What each set of fixes came to: none, all, and each alone and left out."""

    shape: CacheShape
    today: Tally
    fixed: Tally
    alone: dict[str, Tally]
    without: dict[str, Tally]

    def saved(self, name: str) -> int:
        """
        Return the tokens that need not be computed for a fix when all the others are there.

        Lines that move are marked, so that a fix may have more reused and still more computed.
        """
        return self.without[name].computed_tokens - self.fixed.computed_tokens


def analyse(log: Log, prompts: Prompts, options: Options, advance: Advance) -> Report:
    """
    Look through a log and try what would help.

    Raises:
        OperatingError: a file of the log cannot be read.
    """
    counts = LineCounts()
    survey = Survey(show_text=options.show_text)
    for file, request in log.requests(counts, lambda read: advance(FIRST_PASS, read)):
        survey.observe(file, request)
    candidates, notes = _candidates(survey, options)
    tried = _try(log, prompts, options, candidates, lambda read: advance(SECOND_PASS, read))
    reasons = {fix: _reason_against(fix, tried, survey) for fix in candidates}
    chosen = [fix for fix, reason in reasons.items() if reason is None]
    notes += [f"{fix.advice} is not proposed: {reason}" for fix, reason in reasons.items() if reason]
    if len(chosen) < len(candidates):
        tried = _try(log, prompts, options, chosen, lambda read: advance(THIRD_PASS, read))
    return _report(log, counts, survey, options, prompts, tried, chosen, notes)


def _candidates(survey: Survey, options: Options) -> tuple[list[Fix], list[str]]:
    """Return the fixes for what was found, and why some are none."""
    detectors = {detector for (_, detector, _), sighting in survey.volatile.items() if sighting.varies}
    fixes = [pin_fix()] if survey.tools else []
    fixes += [detector_fix(detector) for detector in Detector if detector in detectors]
    template = survey.template_after
    if template is None or not template.tail.length:
        return fixes, []
    if not template.is_stable:
        return fixes, [_unstable_note(template), *_tail_notes(survey)]
    layout = Layout.TAIL_FIRST if options.plain_engine else Layout.FIXED_TAIL
    return [*fixes, tail_fix(layout)], []


def _unstable_note(template: Template) -> str:
    return (
        f"the tail is left alone: {template.stability:.1%} of {template.prompts} prompts follow the template;"
        f" needed are {STABLE_SHARE:.0%} of at least {STABLE_PROMPTS_MIN}"
    )


def _tail_notes(survey: Survey) -> list[str]:
    """Return what changes in the tail, which is reused as a whole or not at all, so that no rule mends it."""
    changing = {detector: found for detector, found in survey.tail_volatile.items() if found.varies}
    return [
        f"in the tail a {detector.value} changes, first at {found.first.path} char {found.first.offset}:"
        " have the client put it elsewhere"
        for detector, found in changing.items()
    ]


def _try(
    log: Log, prompts: Prompts, options: Options, fixes: Sequence[Fix], advance: Callable[[int], None]
) -> _Tried:
    """Simulate every set of fixes that is asked about; equal sets run once."""
    every = frozenset(fix.name for fix in fixes)
    sets = {frozenset[str](), every}
    sets |= {frozenset([name]) for name in every} | {every - {name} for name in every}
    ordered = sorted(sets, key=lambda names: (len(names), sorted(names)))
    policies = [_policy_or_none([fix for fix in fixes if fix.name in names], options) for names in ordered]
    simulation = Simulation(policies, prompts, options.shape)
    for _, request in log.requests(LineCounts(), advance):
        simulation.observe(request)
    found = {names: scenario.tally for names, scenario in zip(ordered, simulation.scenarios, strict=True)}
    return _Tried(
        simulation.shape,
        found[frozenset()],
        found[every],
        {name: found[frozenset([name])] for name in every},
        {name: found[every - {name}] for name in every},
    )


def _policy_or_none(fixes: Sequence[Fix], options: Options) -> Policy | None:
    return policy_of(fixes, replace(options.names, models=())) if fixes else None


def _reason_against(fix: Fix, tried: _Tried, survey: Survey) -> str | None:
    """Return why a fix is not proposed, None if it is."""
    if tried.alone[fix.name].refused > tried.today.refused:
        return "the model's chat template refuses what it makes of some requests"
    if tried.saved(fix.name) > 0:
        return None
    tail_tokens = tried.alone[fix.name].tail_tokens
    if fix.suffix and tail_tokens < TAIL_TOKENS_MIN:
        return (
            f"the tail has {tail_tokens} tokens, and engines store {TAIL_TOKENS_MIN} or more;"
            " --plain-engine tries it in front"
        )
    return "it saves nothing" + _advice(_sightings(survey).get(fix.name, []))


def _advice(found: Sequence[Sighting]) -> str:
    """Return what would help where spans stand in the middle of long lines, which move as a whole."""
    beside, requests = sum(one.chars_beside for one in found), sum(one.requests for one in found)
    if beside <= LINE_CHARS_MIN * requests:
        return ""
    return ", because the fixed words of its line move along: have the client give it a line of its own"


def _report(
    log: Log,
    counts: LineCounts,
    survey: Survey,
    options: Options,
    prompts: Prompts,
    tried: _Tried,
    chosen: Sequence[Fix],
    notes: Sequence[str],
) -> Report:
    named = replace(options.names, models=options.names.models or survey.models)
    return Report(
        files=log.names,
        lines=Lines(
            requests=counts.requests,
            skipped=counts.skipped,
            bad=counts.bad,
            refused=tried.today.refused,
            named=tuple(counts.named),
        ),
        tokens_by=prompts.label,
        block_tokens=tried.shape.block_tokens,
        cache_tokens=tried.shape.cache_tokens,
        cache_tokens_asked=options.shape.cache_tokens,
        prompt_tokens=tried.today.prompt_tokens,
        reuse=tried.today.reuse,
        reuse_fixed=tried.fixed.reuse,
        tokens_saved=tried.today.computed_tokens - tried.fixed.computed_tokens,
        findings=tuple(_findings(survey, tried, chosen)),
        fixes=tuple(_effect(fix, tried) for fix in chosen),
        template=survey.template_before,
        template_fixed=survey.template_after,
        policy=policy_of(chosen, named, report=True) if chosen else None,
        notes=tuple(notes),
        price=options.price,
    )


def _effect(fix: Fix, tried: _Tried) -> FixEffect:
    return FixEffect(
        name=fix.name,
        advice=fix.advice,
        reuse_alone=tried.alone[fix.name].reuse,
        reuse_without=tried.without[fix.name].reuse,
        tokens=tried.saved(fix.name),
    )


def _findings(survey: Survey, tried: _Tried, chosen: Sequence[Fix]) -> list[Finding]:
    """Return what was found, dearest first."""
    saved = {fix.name: tried.saved(fix.name) for fix in chosen}
    found = [*_volatile(survey, tried, saved), *_tool_forms(survey, saved), *_rest(survey, tried)]
    if (tail := _tail(survey, saved)) is not None:
        found.append(tail)
    return sorted(found, key=lambda finding: (-finding.tokens, finding.kind))


def _sightings(survey: Survey) -> dict[str, list[Sighting]]:
    """Return what changes in the prefix, by its detector's name."""
    grouped: dict[str, list[Sighting]] = {}
    for (_, detector, _), sighting in survey.volatile.items():
        if sighting.varies:
            grouped.setdefault(detector.value, []).append(sighting)
    return grouped


def _volatile(survey: Survey, tried: _Tried, saved: dict[str, int]) -> list[Finding]:
    """Return what changes in the prefix; what no fix saves is told by its length."""
    findings: list[Finding] = []
    for name, found in _sightings(survey).items():
        finding = _fixable(name, name, found, saved)
        if finding.fix is None:
            tokens = _by_length(max(one.chars_behind for one in found), survey, tried)
            finding = replace(finding, tokens=tokens, estimated=True)
        findings.append(finding)
    return findings


def _by_length(chars: int, survey: Survey, tried: _Tried) -> int:
    """Return about how many tokens so many characters of the log are."""
    return round(chars * tried.today.prompt_tokens / survey.chars) if survey.chars else 0


def _tool_forms(survey: Survey, saved: dict[str, int]) -> list[Finding]:
    return [_fixable(kind, PIN, [sighting], saved) for kind, sighting in survey.tools.items()]


def _fixable(kind: str, fix: str, found: Sequence[Sighting], saved: dict[str, int]) -> Finding:
    return Finding(
        kind=kind,
        first=min((sighting.first for sighting in found), key=lambda place: (place.file, place.line)),
        requests=max(sighting.requests for sighting in found),
        places=len(found),
        fix=fix if fix in saved else None,
        tokens=saved.get(fix, 0),
    )


def _rest(survey: Survey, tried: _Tried) -> list[Finding]:
    """Return what still differs when everything volatile is out; what it costs is told by length."""
    return [
        Finding(
            kind=kind,
            first=parting.first,
            requests=parting.requests,
            places=1,
            fix=None,
            tokens=_by_length(parting.chars_behind, survey, tried),
            estimated=True,
        )
        for kind, parting in survey.partings.found.items()
    ]


def _tail(survey: Survey, saved: dict[str, int]) -> Finding | None:
    template = survey.template_after
    if template is None or not template.tail.length or survey.first_tail is None:
        return None
    requests = round(template.tail.share * template.prompts)
    return Finding(
        kind=FIXED_TAIL,
        first=survey.first_tail,
        requests=requests,
        places=1,
        fix=TAIL if TAIL in saved else None,
        tokens=saved.get(TAIL, 0),
    )
