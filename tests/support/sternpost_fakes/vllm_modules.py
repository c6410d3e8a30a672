"""vLLM's modules, imported when a test asks for them: it takes seconds, and collecting tests must not."""

from __future__ import annotations

import importlib
import warnings
from typing import Any


def import_object(path: str) -> Any:
    """Return `package.module:Name.attribute`; vLLM's own warnings at import are not this project's."""
    module_name, _, names = path.partition(":")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: Any = importlib.import_module(module_name)
    for name in filter(None, names.split(".")):
        found = getattr(found, name)
    return found
