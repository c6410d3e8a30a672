"""
The engine's end: samples for calibration are no work to wait for.

An engine that is told to end goes on while it has requests, and the scheduler makes samples as long as there
are tails to calibrate. Only the engine core knows that it ends, so its own method is wrapped. Where vLLM does
not have it any more, an engine that calibrates ends when its time to drain is over, as before.
"""

from __future__ import annotations

from functools import wraps
from typing import Any, Final

_METHOD: Final = "_handle_shutdown"
_WRAPPED: Final = "_sternpost_ends_samples"


def end_samples_at_shutdown(core_process: type) -> None:
    """Wrap the method that the engine core's process asks before each step whether to go on, once."""
    handle_shutdown = getattr(core_process, _METHOD, None)
    if handle_shutdown is None or getattr(core_process, _WRAPPED, False):
        return

    @wraps(handle_shutdown)
    def handle_shutdown_without_samples(self: Any) -> Any:
        end_samples = getattr(self.scheduler, "end_samples", None)
        if end_samples is not None and not self.is_running():
            end_samples()
        return handle_shutdown(self)

    setattr(core_process, _METHOD, handle_shutdown_without_samples)
    setattr(core_process, _WRAPPED, True)
