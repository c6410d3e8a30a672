"""
A model's tokenizer and chat template, from its directory and from nowhere else.

Read without the model's framework, which would take more memory than all that lint needs besides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol

from sternpost_core.errors import OperatingError

TOKENIZER_FILE: Final = "tokenizer.json"
CONFIG_FILE: Final = "tokenizer_config.json"
TEMPLATE_FILE: Final = "chat_template.jinja"

DEFAULT_TEMPLATE: Final = "default"
TOOLS_TEMPLATE: Final = "tool_use"
"""Names of the templates of a model that has several: the second is for conversations with tools."""

PROGRAM_ERRORS: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What a template, which is a program of the model's, may end with where it expects something else."""


class TemplateRefusal(Exception):
    """A chat template cannot render a conversation, or does not want to."""


class ModelTokenizer(Protocol):
    """What lint asks of a model; `marks` are the tokens that are cut out of a text before all others."""

    marks: frozenset[str]

    def ids(self, text: str, *, opened: bool) -> Sequence[int]:
        """Return a text's token ids, with those that open every plain prompt if `opened`."""

    def render(
        self,
        messages: Sequence[Any],
        tools: Sequence[Any] | None,
        *,
        closed: bool,
        options: Mapping[str, Any],
    ) -> str:
        """
        Return a conversation as text, with the opening of the answer if `closed`.

        Raises:
            TemplateRefusal: the template does not take it.
        """


def load_model_tokenizer(directory: Path, now: datetime) -> ModelTokenizer:
    """
    Return what a model's directory says; `now` is the time for templates that ask for it.

    Raises:
        OperatingError: a package is missing, or the directory holds no tokenizer or no chat template.
    """
    try:
        import tokenizers
    except ImportError as error:
        raise OperatingError("--model needs the packages tokenizers and jinja2") from error
    if not (directory / TOKENIZER_FILE).is_file():
        raise OperatingError(f"--model: {directory} holds no {TOKENIZER_FILE}; give a model's directory")
    config = _read_config(directory / CONFIG_FILE)
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(directory / TOKENIZER_FILE))
    except Exception as error:
        # The reader is another language's, and raises plain exceptions for whatever it finds.
        raise OperatingError(f"--model: {directory / TOKENIZER_FILE} cannot be read: {error}") from error
    return _FileTokenizer(tokenizer, _templates(directory, config), _special_names(config), now)


class _FileTokenizer:
    """A tokenizer of the package tokenizers, beside templates."""

    def __init__(
        self, tokenizer: Any, templates: Mapping[str, str], names: Mapping[str, str], now: datetime
    ) -> None:
        self._tokenizer = tokenizer
        self._names = names
        environment, refusals = _environment(now)
        self._refusals: tuple[type[Exception], ...] = (*refusals, *PROGRAM_ERRORS)
        try:
            self._templates = {name: environment.from_string(text) for name, text in templates.items()}
        except refusals as error:
            raise OperatingError(f"--model: the chat template cannot be read: {error}") from error
        self.marks = frozenset(token.content for token in tokenizer.get_added_tokens_decoder().values())

    def ids(self, text: str, *, opened: bool) -> Sequence[int]:
        """Return a text's token ids."""
        found: list[int] = self._tokenizer.encode(text, add_special_tokens=opened).ids
        return found

    def render(
        self,
        messages: Sequence[Any],
        tools: Sequence[Any] | None,
        *,
        closed: bool,
        options: Mapping[str, Any],
    ) -> str:
        """Return a conversation as text."""
        template = self._templates.get(TOOLS_TEMPLATE) if tools else None
        if template is None:
            template = self._templates[DEFAULT_TEMPLATE]
        given = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": closed}
        try:
            return str(template.render({**self._names, **options, **given}))
        except self._refusals as error:
            raise TemplateRefusal from error


def _environment(now: datetime) -> tuple[Any, tuple[type[Exception], ...]]:
    """Return what templates run in, as model hubs define it, and the errors that it raises."""
    from jinja2 import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """A tag about training, which changes nothing in the text."""

        tags = {"generation"}  # noqa: RUF012 - it is what the library asks for.

        def parse(self, parser: Any) -> Any:
            """Take what is between the tags as it is."""
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = now.strftime
    return environment, (TemplateError,)


def _to_json(
    found: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON without the escapes that a web page would need."""
    return json.dumps(
        found, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _read_config(path: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(path.read_bytes()) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise OperatingError(f"--model: {path} cannot be read: {error}") from error
    return config if isinstance(config, dict) else {}


def _templates(directory: Path, config: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the chat templates by name, from a file of their own or from the tokenizer's configuration."""
    file = directory / TEMPLATE_FILE
    if file.is_file():
        return {DEFAULT_TEMPLATE: file.read_text(encoding="utf-8")}
    held = config.get("chat_template")
    if isinstance(held, list):
        held = {entry.get("name"): entry.get("template") for entry in held if isinstance(entry, dict)}
    named = held if isinstance(held, dict) else {DEFAULT_TEMPLATE: held}
    if not isinstance(named.get(DEFAULT_TEMPLATE), str):
        raise OperatingError(f"--model: {directory} holds no chat template; use --encoding instead")
    return {name: text for name, text in named.items() if isinstance(text, str)}


def _special_names(config: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the special tokens that templates call by name, such as `bos_token`."""
    named = {name: found for name, found in config.items() if name.endswith("_token")}
    texts = {
        name: found.get("content") if isinstance(found, dict) else found for name, found in named.items()
    }
    return {name: text for name, text in texts.items() if isinstance(text, str)}
