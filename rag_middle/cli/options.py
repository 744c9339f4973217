"""Flags that several commands take, each described once.

A command takes a group of flags as one dictionary (`command`): what `GenerationOptions` declares
(`generation_flags`), and how a model is loaded (`LOADING`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, StrEnum
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_args

import typer

from rag_middle.cli.console import reporting
from rag_middle.errors import MethodConfigError, UnsupportedGenerationError
from rag_middle.options import ENDPOINT_SECONDS, KERNELS, OPTIONS, Option, SendDocuments
from rag_middle.plain_data import parse_json


class Panel(str):
    """A title in the help of a command, under which flags stand."""

    def option(self, *names: str, **settings: Any) -> Any:
        """As `typer.Option`, under this title."""
        return typer.Option(*names, rich_help_panel=self, **settings)

    def flag(
        self,
        name: str,
        kind: Any,
        default: Any = None,
        *,
        names: Sequence[str] = (),
        **settings: Any,
    ) -> Parameter:
        """A flag of a group, under this title; `names` and `settings` as of `typer.Option`."""
        if kind is bool and not names:
            names = (f"--{name.replace('_', '-')}",)
        return flag(name, Annotated[kind, self.option(*names, **settings)], default)


MODEL_PANEL = Panel("Model")
METHOD_PANEL = Panel("Method")
PROMPT_PANEL = Panel("Prompt")
TEXT_PANEL = Panel("Generation")
OUTPUT_PANEL = Panel("Output")
ENDPOINT_PANEL = Panel("Model behind an HTTP address")

Group = Sequence[Parameter]


def command(**groups: Group) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function: it reports errors, takes groups of flags, and ``--debug``.

    Each group of flags stands where a parameter of the group's name does, and comes as one
    dictionary by parameter: what was given, and defaults other than None. Choices are names there,
    and what can be repeated is a tuple.

    Args:
        groups: flags by the name of the function's parameter.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        flags: list[Parameter] = []
        for parameter in signature(function, eval_str=True).parameters.values():
            own = parameter.replace(kind=Parameter.KEYWORD_ONLY)
            flags += groups.get(parameter.name, (own,))
        flags.append(_DEBUG)

        def run(**values: Any) -> None:
            with reporting(as_json=values.get("as_json", False), debug=values.pop("debug")):
                for name, group in groups.items():
                    chosen = {parameter.name: values.pop(parameter.name) for parameter in group}
                    values[name] = {
                        name: _plain(value) for name, value in chosen.items() if value is not None
                    }
                function(**values)

        run.__name__, run.__doc__ = function.__name__, function.__doc__
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in flags}
        run.__signature__ = Signature(flags)  # type: ignore[attr-defined]
        return run

    return decorate


def flag(name: str, annotation: Any, default: Any = None) -> Parameter:
    """A flag of a group; `annotation` is as in the signature of a command."""
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


_DEBUG = flag(
    "debug", Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")], False
)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return tuple(value) if isinstance(value, list) else value


ModelOption = Annotated[
    str | None,
    MODEL_PANEL.option(
        "--model",
        "-m",
        help="Directory, GGUF file or hub name. Default: SmolLM2-135M-Instruct.",
    ),
]
EmbedderOption = Annotated[
    str | None,
    typer.Option(
        help="Folder or hub name of a sentence-transformers model, which is fetched if it is not "
        "here. Default: all-MiniLM-L6-v2, without a network.",
    ),
]
RebuildOption = Annotated[
    bool,
    typer.Option(
        "--rebuild", help="Replace the saved index, also if it is damaged or of another embedder."
    ),
]
METHOD_HELP = (
    "A name (see rag-middle methods), NAME:PRESET, profile:PATH (see rag-middle calibrate), or "
    "several joined by +."
)
MethodOption = Annotated[str, METHOD_PANEL.option(help=METHOD_HELP)]
MethodOptionsOption = Annotated[
    list[str] | None,
    METHOD_PANEL.option(
        "--method-option",
        "-o",
        metavar="NAME=VALUE",
        help="An option of the method, the value in JSON; repeatable.",
    ),
]


def placed(loading: dict[str, Any]) -> dict[str, Any]:
    """The arguments of ``from_pretrained`` for flags of `LOADING`: auto is a device map there."""
    if loading.get("device") != "auto" or loading.get("device_map") is not None:
        return loading
    return {**loading, "device": None, "device_map": "auto"}


_PROMPT_OPTIONS = ("template", "system", "on_overflow", "on_missing_documents")
GENERATION = (
    *_PROMPT_OPTIONS,
    *("max_new_tokens", "temperature", "top_p", "top_k", "typical_p", "repetition_penalty"),
    *("no_repeat_ngram_size", "num_beams", "seed", "stop"),
)
"""Options of a request that are flags."""

#: Flags that are not called as the parameter is.
RENAMED_FLAGS = {
    "changes": "--change",
    "num_beams": "--beams",
    "quantization_config": "--quantize",
    "scoring": "--score-by",
}
#: Where the command line takes less than Python does.
_FLAG_TYPES = {"seed": int | None, "stop": list[str] | None}


def choice_type(name: str, choices: Iterable[str]) -> Any:
    """A type for flags that take one of some words."""
    enumeration: Any = StrEnum  # mypy knows its functional form with literal names only
    return enumeration(name, {choice: choice for choice in choices})


def generation_flags(names: Iterable[str] = GENERATION, **defaults: Any) -> Group:
    """Flags for options that `GenerationOptions` declares.

    Args:
        names: of the options, some of `GENERATION`.
        defaults: where they are not those of the declaration.
    """
    return [
        _declared_flag(
            OPTIONS[name],
            defaults.get(name, OPTIONS[name].default),
            PROMPT_PANEL if name in _PROMPT_OPTIONS else TEXT_PANEL,
        )
        for name in names
    ]


def _declared_flag(option: Option, default: Any, panel: Panel) -> Parameter:
    name = option.name
    kind: Any = _FLAG_TYPES.get(name, option.type)
    if option.choices:
        kind = choice_type(name, option.choices)
        default = kind(default)
    help_text, *_ = option.help.partition(" In Python")
    repeatable = default == ()
    described = panel.option(
        *filter(None, [RENAMED_FLAGS.get(name)]),
        min=option.above if option.minimum is None else option.minimum,
        max=option.maximum,
        help=f"{help_text} Repeatable." if repeatable else help_text,
    )
    return flag(name, Annotated[kind, described], None if repeatable else default)


_DTYPE = choice_type("Dtype", ("auto", "bfloat16", "float16", "float32"))
_BITS = choice_type("Bits", ("4bit", "8bit"))

LOADING: Group = (
    MODEL_PANEL.flag(
        "context_window",
        int | None,
        min=1,
        help="Tokens of prompt and answer together. Default: what the model's config says, RoPE "
        "scaling included.",
    ),
    MODEL_PANEL.flag("dtype", _DTYPE, _DTYPE.auto, help="Number format. auto: as stored."),
    MODEL_PANEL.flag(
        "device",
        str | None,
        help="cpu, cuda, cuda:1 ..., or auto to spread over what there is (needs accelerate).",
    ),
    MODEL_PANEL.flag(
        "device_map",
        str | None,
        help="How to spread the model, instead of --device: auto, balanced, sequential ... (needs "
        "accelerate).",
    ),
    MODEL_PANEL.flag(
        "quantization_config",
        _BITS | None,
        names=(RENAMED_FLAGS["quantization_config"],),
        help="Load the weights with fewer bits (needs bitsandbytes and a CUDA GPU).",
    ),
    MODEL_PANEL.flag("attn_implementation", str | None, help="sdpa, eager, flash_attention_2 ..."),
    _declared_flag(KERNELS, KERNELS.default, MODEL_PANEL),
    MODEL_PANEL.flag("revision", str | None, help="Commit, tag or branch on the hub."),
    MODEL_PANEL.flag(
        "gguf_file",
        str | None,
        metavar="NAME",
        help="A GGUF file in the model's directory or on the hub. A file here is a --model itself.",
    ),
    MODEL_PANEL.flag(
        "trust_remote_code", bool, False, help="Run code that comes with the model. Read it first."
    ),
)
"""How a model is loaded."""


_SEND_DOCUMENTS = choice_type("SendDocuments", get_args(SendDocuments))

ENDPOINT: Group = (
    ENDPOINT_PANEL.flag(
        "endpoint",
        str | None,
        metavar="URL",
        help="Ask a model at this OpenAI-compatible address (vLLM, Ollama, hosted), such as "
        "http://localhost:8000/v1; --model is then its name there.",
    ),
    ENDPOINT_PANEL.flag(
        "api_key_env",
        str | None,
        metavar="NAME",
        help="Environment variable with the key for it. Default: OPENAI_API_KEY, if it is set and "
        "the address is local or https; an empty name: no key.",
    ),
    ENDPOINT_PANEL.flag(
        "send_documents",
        _SEND_DOCUMENTS,
        _SEND_DOCUMENTS("auto"),
        help="How documents travel. text: within the message; field: by themselves, for rag-middle "
        "serve, whose method needs that. auto: field there, text elsewhere.",
    ),
    ENDPOINT_PANEL.flag(
        "timeout", float, ENDPOINT_SECONDS, min=0.001, help="Seconds that a request may take."
    ),
)
"""Where a model is that is not loaded here; arguments of `EndpointModel`."""
_DEFAULTS = {parameter.name: parameter.default for parameter in (*ENDPOINT, *LOADING)}


def refuse_set(options: Mapping[str, Any], why: str, *, but: str = "") -> None:
    """Refuse flags of `ENDPOINT` or `LOADING` that say nothing here.

    Args:
        options: by name, as a command gets them.
        why: they do not, and what to do.
        but: a name that does.

    Raises:
        UnsupportedGenerationError: one of them is not as it is by default.
    """
    for name, value in options.items():
        if name != but and value != _DEFAULTS[name]:
            spelt = RENAMED_FLAGS.get(name, f"--{name.replace('_', '-')}")
            raise UnsupportedGenerationError(f"{spelt} {why}")


def parse_method_options(given: Iterable[str], flag: str = "--method-option") -> dict[str, Any]:
    """Values are JSON where they can be read as JSON, and strings otherwise.

    Keys of objects that are whole numbers become such: layers are numbers.

    Args:
        flag: that they were given with, for messages.

    Raises:
        MethodConfigError: an entry without ``=``, or a name given twice.
    """
    options: dict[str, Any] = {}
    for entry in given:
        name, separator, value = entry.partition("=")
        name = name.strip().replace("-", "_")
        if not separator or not name:
            raise MethodConfigError(f"{flag} {entry!r}: write NAME=VALUE, e.g. min_ratio=1.2.")
        if name in options:
            raise MethodConfigError(f"{flag} {name} was given twice.")
        try:
            options[name] = parse_json(value, object_pairs_hook=_numbered)
        except ValueError:
            options[name] = value
    return options


def _numbered(pairs: list[tuple[str, Any]]) -> dict[Any, Any]:
    return {int(key) if key.isdecimal() else key: value for key, value in pairs}
