"""What makes a function a command, and the options that several commands take.

A group of options is a function whose signature is written as Typer reads it. A command names it in
an annotation, ``loading: Loading``, and gets what was given as one dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rag_middle.cli.console import reporting
from rag_middle.errors import MethodConfigError
from rag_middle.options import OPTIONS, GenerationOptions
from rag_middle.plain_data import parse_json

if TYPE_CHECKING:
    from rag_middle.methods import Method

# Options by the title that they stand under. Hidden ones stand in docs/cli.md alone.
model_flag = partial(typer.Option, rich_help_panel="Model")
method_flag = partial(typer.Option, rich_help_panel="Method")
retrieval_flag = partial(typer.Option, rich_help_panel="Retrieval")
prompt_flag = partial(typer.Option, rich_help_panel="Prompt")
output_flag = partial(typer.Option, rich_help_panel="Output")


def group(function: Callable[..., None]) -> list[Parameter]:
    """The options of a function's signature, for the annotation of a command's parameter."""
    written = signature(function, eval_str=True).parameters.values()
    return [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in written]


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Make a command of a function: it reports errors, takes groups of options, and ``--debug``.

    The dictionary of a group holds what was given, and defaults other than None.
    """
    groups: dict[str, list[Parameter]] = {}
    options: list[Parameter] = []
    for parameter in group(function):
        members = [parameter]
        for metadata in getattr(parameter.annotation, "__metadata__", ()):
            if isinstance(metadata, list):
                members = groups[parameter.name] = metadata
        options += members
    options.append(Parameter("debug", Parameter.KEYWORD_ONLY, default=False, annotation=_Debug))

    def run(**values: Any) -> None:
        reported = reporting(as_json=values.get("as_json", False), debug=values.pop("debug"))
        with reported, _threads(values.get("threads")):
            for name, members in groups.items():
                chosen = {each.name: values.pop(each.name) for each in members}
                values[name] = {key: value for key, value in chosen.items() if value is not None}
            function(**values)

    run.__name__, run.__doc__ = function.__name__, function.__doc__
    run.__annotations__ = {option.name: option.annotation for option in options}
    run.__signature__ = Signature(options)  # type: ignore[attr-defined]
    return run


def _threads(number: int | None) -> AbstractContextManager[None]:
    if number is None:
        return nullcontext()
    from rag_middle.workers import torch_threads

    return torch_threads(number)


METHOD_HELP = "A name (rag-middle methods), NAME:PRESET, profile:PATH, or several joined by +."

Json = Annotated[bool, typer.Option("--json", help="Write one JSON document to standard output.")]
_Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")]
Model = Annotated[
    str | None,
    model_flag(
        "--model", "-m", help="Folder, GGUF file or hub name. Default: SmolLM2-135M-Instruct."
    ),
]
Embedder = Annotated[
    str | None, retrieval_flag(help="A sentence-transformers model. Default: all-MiniLM-L6-v2.")
]
Rebuild = Annotated[bool, retrieval_flag("--rebuild", help="Replace the saved index.")]
MethodName = Annotated[str, method_flag(help=METHOD_HELP)]
MethodOptions = Annotated[
    list[str] | None,
    method_flag("--method-option", "-o", metavar="NAME=VALUE", help="In JSON; repeatable."),
]
BatchSize = Annotated[int, model_flag("--batch-size", min=1, help="Prompts or requests at a time.")]
Seed = Annotated[int, typer.Option(min=0, help="Random seed.")]
Template = Annotated[
    Literal["auto", "chat", "raw"],
    typer.Option(hidden=True, help="Use the tokenizer's chat template. auto: if it has one."),
]
Threads = Annotated[
    int | None,
    model_flag(
        min=1,
        hidden=True,
        help="CPU threads, of each worker; on busy cores one may be faster than two.",
    ),
]
Backend = Annotated[Literal["processes", "ray"], model_flag(hidden=True, help="Where workers run.")]

Thinking = Annotated[
    bool | None, typer.Option(hidden=True, help="Of the chat template. Default: as it says.")
]

_GENERATION = (
    "template system on_overflow on_missing_documents max_new_tokens temperature top_p top_k "
    "typical_p repetition_penalty no_repeat_ngram_size num_beams seed stop"
).split()
_USUAL = "system max_new_tokens temperature top_p top_k num_beams seed stop".split()


def generation_options(*left_out: str, **defaults: Any) -> list[Parameter]:
    """A group of what `GenerationOptions` declares, with the first sentence it says of each.

    `defaults` replace those of the declaration.
    """
    names = [name for name in _GENERATION if name not in left_out]
    return [_declared(name, defaults.get(name, OPTIONS[name].default)) for name in names]


def _declared(name: str, default: Any) -> Parameter:
    option = OPTIONS[name]
    # The command line takes less than Python does.
    narrow: dict[str, Any] = {"seed": int | None, "stop": list[str] | None}
    kind = Literal[option.choices] if option.choices else narrow.get(name, option.type)
    sentence, *_ = option.help.partition(". ")
    described = typer.Option(
        *(["--beams"] if name == "num_beams" else []),
        rich_help_panel="Generation",
        hidden=name not in _USUAL,
        help=f"{sentence.rstrip('.')}{'; repeatable' if name == 'stop' else ''}.",
    )
    default = None if default == () else default
    annotation = Annotated[kind, described]  # type: ignore[valid-type]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def checked_request(options: Mapping[str, Any], enable_thinking: bool | None) -> dict[str, Any]:
    """Options of a request as the library takes them.

    Raises:
        UnsupportedGenerationError: values that make no sense, known before a model is loaded.
    """
    thinking = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
    request = {**options, "template_options": thinking} if thinking else dict(options)
    GenerationOptions(**request)
    return request


def chosen_method(name: str, options: Iterable[str] | None = None) -> Method:
    """The method of that name, with options as they are written; refused without PyTorch."""
    from rag_middle.methods import resolve_method

    return resolve_method(name, parse_method_options(options))


def parse_method_options(
    given: Iterable[str] | None, flag: str = "--method-option"
) -> dict[str, Any]:
    """Values are JSON where they can be read as JSON, and strings otherwise.

    Keys of objects that are whole numbers become such: layers are numbers.

    Raises:
        MethodConfigError: an entry without ``=``.
    """
    options: dict[str, Any] = {}
    for entry in given or ():
        name, separator, value = entry.partition("=")
        name = name.strip().replace("-", "_")
        if not separator or not name:
            raise MethodConfigError(f"{flag} {entry!r}: write NAME=VALUE, e.g. min_ratio=1.2.")
        try:
            options[name] = parse_json(value, object_pairs_hook=_numbered)
        except ValueError:
            options[name] = value
    return options


def _numbered(pairs: list[tuple[str, Any]]) -> dict[Any, Any]:
    return {int(key) if key.isdecimal() else key: value for key, value in pairs}
