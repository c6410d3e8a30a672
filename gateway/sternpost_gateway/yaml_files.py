"""Reading YAML files strictly: a duplicate key is an error, and so is anything but plain data."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any, Final

import yaml

from sternpost_core.errors import Fault, PolicyError

FILE_BYTES_MAX: Final = 1024 * 1024
"""The largest file that is read: as large as an object may be in Kubernetes."""


class UniqueKeyLoader(yaml.SafeLoader):
    """Makes plain data and refuses duplicate keys, of which YAML libraries silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Make a mapping of a node whose keys all differ."""
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = str(key_node.value)
            if key in seen and key_node.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice in one mapping", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_documents(path: Path) -> list[object]:
    """
    Return the documents of a YAML file.

    Raises:
        PolicyError: the file is too large, cannot be read, or is not YAML; the fault names file and line.
    """
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise _error(path, "a larger file", f"at most {FILE_BYTES_MAX} bytes")
        text = path.read_text(encoding="utf-8")
        return list(yaml.load_all(text, UniqueKeyLoader))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise _error(path, f"line {line}: {error.problem}", "valid YAML with each key once") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise _error(path, "text that cannot be read", "valid YAML in UTF-8") from None
    except OSError as error:
        raise _error(path, error.strerror or type(error).__name__, "a readable file") from None


def _error(path: Path, value: str, allowed: str) -> PolicyError:
    return PolicyError(path.name, [Fault(path.name, value, allowed)])
