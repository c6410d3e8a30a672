"""A vocabulary file as Mistral's own tokenizer reads it, with single bytes for tokens."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Final

CONTROL_TOKENS: Final = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]"),
    *("[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
"""Their ids are their places here."""

CONTROL_PLACES: Final = 32
"""The bytes' tokens begin behind so many places."""


def write_tekken_file(folder: Path) -> None:
    """Write `tekken.json` to a folder."""
    vocabulary = [
        {"rank": byte, "token_bytes": b64encode(bytes([byte])).decode(), "token_str": None}
        for byte in range(256)
    ]
    control = [
        {"rank": rank, "token_str": name, "is_control": True} for rank, name in enumerate(CONTROL_TOKENS)
    ]
    config = {
        "pattern": r"\S+|\s+",
        "num_vocab_tokens": len(vocabulary),
        "default_vocab_size": len(vocabulary) + CONTROL_PLACES,
        "default_num_special_tokens": CONTROL_PLACES,
        "version": "v7",
    }
    whole = {"config": config, "vocab": vocabulary, "special_tokens": control, "version": 1, "type": "Tekken"}
    (folder / "tekken.json").write_text(json.dumps(whole))
