"""Why a policy's request goes without tail reuse; the values are header values and metric labels."""

from __future__ import annotations

from enum import StrEnum


class Bypass(StrEnum):
    """One reason each; what the engine itself decides is in `sternpost_core.hint.Reason`."""

    OBSERVING = "observing"
    """The policy asks for no tail reuse."""

    CLIENT_OFF = "client_off"
    """The client turned reuse off for this request."""

    NOT_IN_ROLLOUT = "not_in_rollout"
    """The policy is being rolled out, and has not reached this session."""

    KILLED = "killed"
    """A kill level turned reuse off."""

    TRIPPED = "tripped"
    """The engine has failed with suffix reads lately and gets none for a while."""

    DEMOTED = "demoted"
    """Shadow replays of this tail disagree with the exact path."""

    NOT_AVAILABLE = "not_available"
    """The policy asks for a tenant source that this release does not have."""

    NOT_CHAT = "not_chat"
    """The request has no prompt that can be read: no messages, or a list of prompts."""

    NO_TAIL = "no_tail"
    """No system message stands behind the leading ones, or nothing holds the marker."""

    NOT_LEARNED = "not_learned"
    """The policy learns its tail, and what this request ends with has not been learned, or is not stable."""

    TAIL_NOT_LAST = "tail_not_last"
    """The tail is not the last message, and the layout keeps it where it is."""

    TAIL_NOT_MOVABLE = "tail_not_movable"
    """The tail is part of a message, a user's, or learned, and the layout would have to move it."""

    TAIL_FIRST = "tail_first"
    """The tail was put in front, where the engine's own prefix cache holds it."""

    TEMPLATE_OPTIONS = "template_options"
    """The request renders its prompt in a way that /tokenize cannot repeat."""

    TAIL_UNKNOWN = "tail_unknown"
    """The tail's tokens are not known yet."""

    TAIL_REFUSED = "tail_refused"
    """The engine refused to tokenize the tail's conversation."""

    TAIL_UNSTABLE = "tail_unstable"
    """The tail's tokens depend on what stands before it."""

    TAIL_TOO_SHORT = "tail_too_short"
    TAIL_TOO_LONG = "tail_too_long"
    """Below the policy's or the engine's least number of tokens, or above the engine's largest."""

    NO_PLUGIN = "no_plugin"
    """The engine runs without the plugin."""

    UNSUPPORTED = "unsupported"
    """The plugin does not support this engine's configuration."""

    NOT_BUILT = "not_built"
    """The engine does not hold the tail."""

    BUILDING = "building"
    """The engine is building the tail."""
