"""Flags that several commands take, each described once.

A command takes a group of flags as one dictionary (`with_flags`): what `GenerationOptions`
declares (`generation_flags`), and how a model is loaded (`LOADING`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum, StrEnum
from inspect import Parameter, Signature, signature
from typing import Annotated, Any

import typer

from rag_middle.options import KERNELS, OPTIONS, Declaration

__all__ = [
    "GENERATION",
    "LOADING",
    "METHOD_PANEL",
    "MODEL_PANEL",
    "OUTPUT_PANEL",
    "PROMPT_PANEL",
    "TEXT_PANEL",
    "AskedMethodOption",
    "MethodOption",
    "MethodOptionsOption",
    "Panel",
    "choice_type",
    "flag",
    "generation_flags",
    "placed",
    "shape_of",
    "with_flags",
]


class Panel(str):
    """A title in the help of a command, under which flags stand."""

    def option(self, *names: str, **settings: Any) -> Any:
        """As `typer.Option`, under this title."""
        return typer.Option(*names, rich_help_panel=self, **settings)


MODEL_PANEL = Panel("Model")
METHOD_PANEL = Panel("Method")
PROMPT_PANEL = Panel("Prompt")
TEXT_PANEL = Panel("Generation")
OUTPUT_PANEL = Panel("Output")

Group = Sequence[Parameter]


def with_flags(**groups: Group) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command groups of flags, each where a parameter of the group's name stands.

    The command gets a group as one dictionary by parameter: what was given, and defaults other
    than None. Choices are names there, and what can be repeated is a tuple.

    Args:
        groups: flags by the name of the command's parameter.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        flags: list[Parameter] = []
        for parameter in signature(command, eval_str=True).parameters.values():
            own = parameter.replace(kind=Parameter.KEYWORD_ONLY)
            flags += groups.get(parameter.name, (own,))

        def run(**values: Any) -> None:
            for name, group in groups.items():
                chosen = {parameter.name: values.pop(parameter.name) for parameter in group}
                values[name] = {
                    name: _plain(value) for name, value in chosen.items() if value is not None
                }
            command(**values)

        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in flags}
        run.__signature__ = Signature(flags)  # type: ignore[attr-defined]
        return run

    return decorate


def flag(name: str, annotation: Any, default: Any = None) -> Parameter:
    """A flag of a group; `annotation` is as in the signature of a command."""
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return tuple(value) if isinstance(value, list) else value


class Dtype(StrEnum):
    """Number format of the weights; auto: as they are stored."""

    auto = "auto"
    bfloat16 = "bfloat16"
    float16 = "float16"
    float32 = "float32"


class Bits(StrEnum):
    """Bits of a quantised weight."""

    four = "4bit"
    eight = "8bit"


_METHOD_HELP = (
    "A name (see rag-middle methods), NAME:PRESET, profile:PATH (see rag-middle calibrate), or "
    "several joined by +."
)
AskedMethodOption = Annotated[
    str | None,
    METHOD_PANEL.option(
        help=f"{_METHOD_HELP} Default: none; behind an HTTP address, what its server uses.",
        show_default=False,
    ),
]
MethodOption = Annotated[
    str,
    METHOD_PANEL.option(help=_METHOD_HELP),
]
MethodOptionsOption = Annotated[
    list[str] | None,
    METHOD_PANEL.option(
        "--method-option",
        "-o",
        metavar="NAME=VALUE",
        help="An option of the method, the value in JSON; repeatable.",
        show_default=False,
    ),
]
ContextWindowOption = Annotated[
    int | None,
    MODEL_PANEL.option(
        min=1,
        help="Tokens of prompt and answer together. Default: what the model's config says, RoPE "
        "scaling included.",
        show_default=False,
    ),
]
DtypeOption = Annotated[
    Dtype,
    MODEL_PANEL.option(help="Number format. auto: as stored."),
]
DeviceOption = Annotated[
    str | None,
    MODEL_PANEL.option(
        help="cpu, cuda, cuda:1 ..., or auto to spread over what there is (needs accelerate).",
        show_default=False,
    ),
]
DeviceMapOption = Annotated[
    str | None,
    MODEL_PANEL.option(
        help="How to spread the model, instead of --device: auto, balanced, sequential ... (needs "
        "accelerate).",
        show_default=False,
    ),
]
QuantizeOption = Annotated[
    Bits | None,
    MODEL_PANEL.option(
        "--quantize",
        help="Load the weights with fewer bits (needs bitsandbytes and a CUDA GPU).",
        show_default=False,
    ),
]
AttnImplementationOption = Annotated[
    str | None,
    MODEL_PANEL.option(help="sdpa, eager, flash_attention_2 ...", show_default=False),
]
RevisionOption = Annotated[
    str | None,
    MODEL_PANEL.option(help="Commit, tag or branch on the hub.", show_default=False),
]
TrustRemoteCodeOption = Annotated[
    bool,
    MODEL_PANEL.option(
        "--trust-remote-code", help="Run code that comes with the model. Read it first."
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

#: Where the command line takes less than Python does.
_FLAG_TYPES = {"seed": int | None, "stop": list[str] | None}
_FLAG_NAMES = {"num_beams": ("--beams",)}


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


def _declared_flag(declaration: Declaration, default: Any, panel: Panel) -> Parameter:
    name, option = declaration.name, declaration.option
    kind: Any = _FLAG_TYPES.get(name, declaration.type)
    if declaration.choices:
        kind = choice_type(name, declaration.choices)
        default = kind(default)
    help_text, *_ = option.help.partition(" In Python")
    repeatable = default == ()
    described = panel.option(
        *_FLAG_NAMES.get(name, ()),
        min=option.above if option.minimum is None else option.minimum,
        max=option.maximum,
        help=f"{help_text} Repeatable." if repeatable else help_text,
        show_default=default not in (None, ()),
    )
    return flag(name, Annotated[kind, described], None if repeatable else default)


LOADING: Group = (
    flag("context_window", ContextWindowOption),
    flag("dtype", DtypeOption, Dtype.auto),
    flag("device", DeviceOption),
    flag("device_map", DeviceMapOption),
    flag("quantization_config", QuantizeOption),
    flag("attn_implementation", AttnImplementationOption),
    _declared_flag(KERNELS, KERNELS.default, MODEL_PANEL),
    flag("revision", RevisionOption),
    flag("trust_remote_code", TrustRemoteCodeOption, False),
)
"""How a model is loaded."""


def shape_of(options: dict[str, Any]) -> dict[str, Any]:
    """Those of the options that say how text becomes tokens."""
    return {name: options[name] for name in ("template", "system") if name in options}
