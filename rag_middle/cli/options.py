"""Options that several commands take, each described once.

A group of options is a function whose signature is written as Typer reads it, or a list of such
parameters (`generation_options`). A command takes a group as one dictionary, see `command`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, Literal

import typer

from rag_middle.cli.console import reporting
from rag_middle.errors import MethodConfigError, UnsupportedGenerationError
from rag_middle.options import ENDPOINT_SECONDS, OPTIONS
from rag_middle.plain_data import parse_json

# Options by the title that they stand under. Hidden ones stand in docs/cli.md alone.
model_flag = partial(typer.Option, rich_help_panel="Model")
method_flag = partial(typer.Option, rich_help_panel="Method")
retrieval_flag = partial(typer.Option, rich_help_panel="Retrieval")
prompt_flag = partial(typer.Option, rich_help_panel="Prompt")
output_flag = partial(typer.Option, rich_help_panel="Output")
_endpoint_flag = partial(typer.Option, rich_help_panel="Model behind an HTTP address")

Group = Callable[..., None] | Sequence[Parameter]


def command(**groups: Group) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function: it reports errors, takes groups of options, and ``--debug``.

    The options of a group stand where a parameter of its name does, and come as one dictionary:
    what was given, and defaults other than None. What can be repeated is a tuple there.
    """
    parameters = {name: _parameters(group) for name, group in groups.items()}

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        options: list[Parameter] = []
        for parameter in _parameters(function):
            options += parameters.get(parameter.name, [parameter])
        options += _parameters(_debugging)

        def run(**values: Any) -> None:
            with reporting(as_json=values.get("as_json", False), debug=values.pop("debug")):
                for name, group in parameters.items():
                    chosen = {each.name: values.pop(each.name) for each in group}
                    values[name] = {
                        key: tuple(value) if isinstance(value, list) else value
                        for key, value in chosen.items()
                        if value is not None
                    }
                function(**values)

        run.__name__, run.__doc__ = function.__name__, function.__doc__
        run.__annotations__ = {option.name: option.annotation for option in options}
        run.__signature__ = Signature(options)  # type: ignore[attr-defined]
        return run

    return decorate


def _parameters(group: Group) -> list[Parameter]:
    if not callable(group):
        return list(group)
    written = signature(group, eval_str=True).parameters.values()
    return [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in written]


def _debugging(
    *, debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False
) -> None:
    """Of every command."""


METHOD_HELP = "A name (rag-middle methods), NAME:PRESET, profile:PATH, or several joined by +."

ModelOption = Annotated[
    str | None,
    model_flag(
        "--model", "-m", help="Folder, GGUF file or hub name. Default: SmolLM2-135M-Instruct."
    ),
]
EmbedderOption = Annotated[
    str | None,
    retrieval_flag(help="A sentence-transformers model. Default: all-MiniLM-L6-v2."),
]
RebuildOption = Annotated[bool, retrieval_flag("--rebuild", help="Replace the saved index.")]
MethodOption = Annotated[str, method_flag(help=METHOD_HELP)]
MethodOptionsOption = Annotated[
    list[str] | None,
    method_flag(
        "--method-option", "-o", metavar="NAME=VALUE", help="Of the method, in JSON; repeatable."
    ),
]
BatchSizeOption = Annotated[
    int, model_flag("--batch-size", min=1, help="Prompts, or requests, at a time.")
]
SeedOption = Annotated[int, typer.Option(min=0, help="Random seed.")]
TemplateOption = Annotated[
    Literal["auto", "chat", "raw"],
    typer.Option(hidden=True, help="Use the tokenizer's chat template. auto: if it has one."),
]
WorkersPlace = Annotated[
    Literal["processes", "ray"], model_flag(hidden=True, help="Where several workers run.")
]


def loading_options(
    *,
    context_window: int | None = model_flag(
        None, min=1, hidden=True, help="Tokens of prompt and answer. Default: its own."
    ),
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = model_flag(
        "auto", hidden=True, help="Number format. auto: as stored."
    ),
    device: str | None = model_flag(
        None, help="cpu, cuda, cuda:1 ..., or auto to spread over all."
    ),
    device_map: str | None = model_flag(
        None, hidden=True, help="How accelerate spreads it: balanced ..."
    ),
    quantization_config: Literal["4bit", "8bit"] | None = model_flag(
        None, "--quantize", help="Load fewer bits (bitsandbytes, CUDA)."
    ),
    attn_implementation: str | None = model_flag(
        None, hidden=True, help="sdpa, eager, flash_attention_2 ..."
    ),
    kernels: Literal["auto", "triton", "torch"] = model_flag(
        "auto",
        hidden=True,
        help="What computes a method's attention. auto: Triton on a GPU in half precision.",
    ),
    revision: str | None = model_flag(None, hidden=True, help="Commit, tag or branch on the hub."),
    gguf_file: str | None = model_flag(
        None, hidden=True, metavar="NAME", help="A GGUF file in the model's folder or on the hub."
    ),
    trust_remote_code: bool = model_flag(
        False, "--trust-remote-code", hidden=True, help="Run code of the model. Read it first."
    ),
) -> None:
    """How a model is loaded: arguments of ``RagMiddleModel.from_pretrained``."""


def endpoint_options(
    *,
    endpoint: str | None = _endpoint_flag(
        None, metavar="URL", help="Ask a model at this OpenAI-compatible address instead."
    ),
    api_key_env: str | None = _endpoint_flag(
        None,
        hidden=True,
        metavar="NAME",
        help="Environment variable with its key. Default: OPENAI_API_KEY, where the address is "
        "local or https; an empty name: no key.",
    ),
    send_documents: Literal["auto", "text", "field"] = _endpoint_flag(
        "auto",
        hidden=True,
        help="How documents travel: text of the message, or a field beside it, for the method "
        "of rag-middle serve. auto: field there.",
    ),
    timeout: float = _endpoint_flag(
        ENDPOINT_SECONDS, hidden=True, min=0.001, help="Seconds that a request may take."
    ),
) -> None:
    """Where a model is that is not loaded here: arguments of `EndpointModel`."""


GENERATION = (
    *("template", "system", "on_overflow", "on_missing_documents", "max_new_tokens"),
    *("temperature", "top_p", "top_k", "typical_p", "repetition_penalty"),
    *("no_repeat_ngram_size", "num_beams", "seed", "stop"),
)
"""Options of a request that the command line has."""
_RARE = (
    *("template", "on_missing_documents", "on_overflow", "typical_p"),
    *("repetition_penalty", "no_repeat_ngram_size"),
)
#: Options that are not called as the parameter is.
_RENAMED = {"num_beams": "--beams", "quantization_config": "--quantize"}


def generation_options(names: Iterable[str] = GENERATION, **defaults: Any) -> list[Parameter]:
    """Options that `GenerationOptions` declares, with the first sentence of what it says of them.

    `defaults` replace those of the declaration.
    """
    return [_declared(name, defaults.get(name, OPTIONS[name].default)) for name in names]


def _declared(name: str, default: Any) -> Parameter:
    option = OPTIONS[name]
    # The command line takes less than Python does.
    narrow: dict[str, Any] = {"seed": int | None, "stop": list[str] | None}
    kind = Literal[option.choices] if option.choices else narrow.get(name, option.type)
    sentence, *_ = option.help.partition(". ")
    described = typer.Option(
        *filter(None, [_RENAMED.get(name)]),
        rich_help_panel="Generation",
        hidden=name in _RARE,
        help=f"{sentence.rstrip('.')}{'; repeatable' if name == 'stop' else ''}.",
    )
    default = None if default == () else default
    annotation = Annotated[kind, described]  # type: ignore[valid-type]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def placed(loading: dict[str, Any]) -> dict[str, Any]:
    """The arguments of ``from_pretrained`` for `loading_options`: auto is a device map there."""
    if loading.get("device") != "auto" or "device_map" in loading:
        return loading
    return {**loading, "device": None, "device_map": "auto"}


def refuse_set(options: Mapping[str, Any], why: str, *, but: str = "") -> None:
    """Refuse values of `endpoint_options` or `loading_options`, which say nothing here.

    Raises:
        UnsupportedGenerationError: one of them, `but` for that name, is not as it is by default.
    """
    groups = (*_parameters(endpoint_options), *_parameters(loading_options))
    defaults = {parameter.name: parameter.default.default for parameter in groups}
    for name, value in options.items():
        if name != but and value != defaults[name]:
            spelt = _RENAMED.get(name, f"--{name.replace('_', '-')}")
            raise UnsupportedGenerationError(f"{spelt} {why}")


def parse_method_options(given: Iterable[str], flag: str = "--method-option") -> dict[str, Any]:
    """Values are JSON where they can be read as JSON, and strings otherwise.

    Keys of objects that are whole numbers become such: layers are numbers.

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
