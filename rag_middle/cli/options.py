"""Options that several commands take, each described once."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

__all__ = [
    "AttnImplementationOption",
    "ContextWindowOption",
    "DeviceOption",
    "Dtype",
    "DtypeOption",
    "MaxNewTokensOption",
    "MethodOption",
    "MethodOptionsOption",
    "MissingDocuments",
    "MissingDocumentsOption",
    "Overflow",
    "OverflowOption",
    "RepetitionPenaltyOption",
    "RevisionOption",
    "SeedOption",
    "StopOption",
    "SystemOption",
    "TemperatureOption",
    "Template",
    "TemplateOption",
    "TopPOption",
    "TrustRemoteCodeOption",
]

MODEL_PANEL = "Model"
METHOD_PANEL = "Method"
PROMPT_PANEL = "Prompt"
TEXT_PANEL = "Generation"
OUTPUT_PANEL = "Output"


class Template(StrEnum):
    """Whether the tokenizer's chat template is used; auto: where there is one."""

    auto = "auto"
    chat = "chat"
    raw = "raw"


class Overflow(StrEnum):
    """What to do with a prompt that does not fit."""

    error = "error"
    drop_documents = "drop_documents"


class MissingDocuments(StrEnum):
    """What to do where a method needs documents and there are none."""

    warn = "warn"
    error = "error"
    ignore = "ignore"


class Dtype(StrEnum):
    """Number format of the weights; auto: as they are stored."""

    auto = "auto"
    bfloat16 = "bfloat16"
    float16 = "float16"
    float32 = "float32"


MethodOption = Annotated[
    str,
    typer.Option(
        help="A name (see rag-middle methods), NAME:PRESET, profile:PATH (see rag-middle "
        "calibrate), or several joined by +.",
        rich_help_panel=METHOD_PANEL,
    ),
]
MethodOptionsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--method-option",
        "-o",
        metavar="NAME=VALUE",
        help="An option of the method, the value in JSON; repeatable.",
        show_default=False,
        rich_help_panel=METHOD_PANEL,
    ),
]
TemplateOption = Annotated[
    Template,
    typer.Option(
        help="Use the tokenizer's chat template. auto: if it has one.",
        rich_help_panel=PROMPT_PANEL,
    ),
]
SystemOption = Annotated[
    str | None,
    typer.Option(help="System message.", show_default=False, rich_help_panel=PROMPT_PANEL),
]
OverflowOption = Annotated[
    Overflow,
    typer.Option(
        help="A prompt that does not fit: refuse it, or drop the least relevant documents.",
        rich_help_panel=PROMPT_PANEL,
    ),
]
MissingDocumentsOption = Annotated[
    MissingDocuments,
    typer.Option(
        help="A prompt without documents, where the method needs some: warn, refuse it, or say "
        "nothing.",
        rich_help_panel=PROMPT_PANEL,
    ),
]
MaxNewTokensOption = Annotated[
    int, typer.Option(min=1, help="Most tokens to generate.", rich_help_panel=TEXT_PANEL)
]
TemperatureOption = Annotated[
    float,
    typer.Option(
        min=0, help="0: always the likeliest token. Above: draw.", rich_help_panel=TEXT_PANEL
    ),
]
TopPOption = Annotated[
    float,
    typer.Option(
        min=0,
        max=1,
        help="Draw from the likeliest tokens that make up this probability.",
        rich_help_panel=TEXT_PANEL,
    ),
]
RepetitionPenaltyOption = Annotated[
    float,
    typer.Option(
        min=1e-6,
        max=1e6,
        help="Above 1: repeat less of what is there.",
        rich_help_panel=TEXT_PANEL,
    ),
]
SeedOption = Annotated[
    int | None,
    typer.Option(
        help="Repeat a drawn text; it is reported where none is given.",
        show_default=False,
        rich_help_panel=TEXT_PANEL,
    ),
]
StopOption = Annotated[
    list[str] | None,
    typer.Option(
        help="End before this string; repeatable.",
        show_default=False,
        rich_help_panel=TEXT_PANEL,
    ),
]
ContextWindowOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Tokens of prompt and answer together. Default: what the model's config says, RoPE "
        "scaling included.",
        show_default=False,
        rich_help_panel=MODEL_PANEL,
    ),
]
DtypeOption = Annotated[
    Dtype,
    typer.Option(help="Number format. auto: as stored.", rich_help_panel=MODEL_PANEL),
]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        help="cpu, cuda, cuda:1 ..., or auto to spread over what there is (needs accelerate).",
        show_default=False,
        rich_help_panel=MODEL_PANEL,
    ),
]
AttnImplementationOption = Annotated[
    str | None,
    typer.Option(
        help="sdpa, eager, flash_attention_2 ...",
        show_default=False,
        rich_help_panel=MODEL_PANEL,
    ),
]
RevisionOption = Annotated[
    str | None,
    typer.Option(
        help="Commit, tag or branch on the hub.", show_default=False, rich_help_panel=MODEL_PANEL
    ),
]
TrustRemoteCodeOption = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="Run code that comes with the model. Read it first.",
        rich_help_panel=MODEL_PANEL,
    ),
]
