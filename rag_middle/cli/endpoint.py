"""Flags of commands that can ask a model behind an HTTP address, and opening it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rag_middle.cli.console import tell
from rag_middle.cli.options import LOADING, flag
from rag_middle.errors import EndpointConfigError
from rag_middle.wording import Argument, counted

if TYPE_CHECKING:
    from rag_middle.documents import ContextPrompt
    from rag_middle.endpoint import EndpointModel
    from rag_middle.evaluation.trials import PlanCallback
    from rag_middle.methods import Method

__all__ = ["ENDPOINT", "check_only_with_endpoint", "open_endpoint", "serves_reader", "tell_work"]

ENDPOINT_PANEL = "Model behind an HTTP address"


class Documents(StrEnum):
    """text: within the message; marked: with markers; field: beside the messages."""

    text = "text"
    marked = "marked"
    field = "field"


EndpointOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Ask a model at this OpenAI-compatible address (vLLM, Ollama, hosted), such as "
        "http://localhost:8000/v1; --model is then its name there.",
        show_default=False,
        rich_help_panel=ENDPOINT_PANEL,
    ),
]
ApiKeyEnvOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Environment variable with the key for it. Default: OPENAI_API_KEY, if it is set and "
        "the address is local or https; an empty name: no key.",
        show_default=False,
        rich_help_panel=ENDPOINT_PANEL,
    ),
]
SendDocumentsOption = Annotated[
    Documents,
    typer.Option(
        help="How documents travel. text: within the message; for rag-middle serve also marked "
        "(the same with markers) and field (beside the messages), and the server applies methods.",
        rich_help_panel=ENDPOINT_PANEL,
    ),
]
TimeoutOption = Annotated[
    float,
    typer.Option(
        min=0.001,
        help="Seconds that a request may take.",
        rich_help_panel=ENDPOINT_PANEL,
    ),
]

ENDPOINT = (
    flag("endpoint", EndpointOption),
    flag("api_key_env", ApiKeyEnvOption),
    flag("send_documents", SendDocumentsOption, Documents.text),
    flag("timeout", TimeoutOption, 300.0),
)
"""Where a model is that is not loaded here; arguments of `EndpointModel`."""

_DEFAULTS = {parameter.name: parameter.default for parameter in (*ENDPOINT, *LOADING)}


def check_only_with_endpoint(options: Mapping[str, Any]) -> None:
    """Refuse options of an endpoint where none is named.

    Raises:
        EndpointConfigError: one of them was given.
    """
    for name, value in options.items():
        if value != _DEFAULTS[name]:
            raise EndpointConfigError(
                Argument(name), " is about a model behind an HTTP address: name that with ",
                Argument("endpoint"), " too.",
            )  # fmt: skip


def open_endpoint(
    options: Mapping[str, Any], model: str | None, loading: Mapping[str, Any], **more: Any
) -> EndpointModel:
    """The model behind an address.

    Args:
        options: values of `ENDPOINT`, the address among them.
        model: its name there.
        loading: values of `LOADING`, none of which means anything there.
        more: arguments of `EndpointModel`.

    Raises:
        EndpointError: it cannot be asked, or it was said how to load it.
    """
    from rag_middle.endpoint import EndpointModel

    for name, value in loading.items():
        if value != _DEFAULTS[name]:
            raise EndpointConfigError(
                Argument(name), " says how to load a model, and this one runs at ",
                Argument("endpoint"), ": set that on its server.",
            )  # fmt: skip
    return EndpointModel(model=model, **options, **more)


def serves_reader(model: EndpointModel) -> bool:
    """Whether it goes by the name of the bundled reader, or by its folder as vLLM names models."""
    from rag_middle.reader import READER_NAME, SERVED_NAME, is_reader

    return model.name in (READER_NAME, SERVED_NAME) or is_reader(Path(model.name))


def tell_work(model: EndpointModel) -> PlanCallback:
    """A function that says on standard error what a run will cost."""

    def tell_before(asking: Sequence[tuple[ContextPrompt, Method]], new_tokens: int) -> None:
        work = model.workload(asking, new_tokens)
        tell(
            "Cost",
            "dim",
            f"{counted(work.requests, 'request')}, about {work.prompt_tokens:,} prompt tokens (a "
            f"token for four characters), at most {work.new_tokens:,} new tokens.",
        )

    return tell_before
