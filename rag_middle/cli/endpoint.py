"""Flags of commands that can ask a model behind an HTTP address, and opening it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from rag_middle.cli.console import tell
from rag_middle.cli.options import LOADING, Panel, choice_type
from rag_middle.errors import EndpointConfigError
from rag_middle.options import ENDPOINT_SECONDS, SendDocuments
from rag_middle.wording import Argument, counted

if TYPE_CHECKING:
    from rag_middle.documents import ContextPrompt
    from rag_middle.endpoint import EndpointModel
    from rag_middle.evaluation.trials import PlanCallback
    from rag_middle.methods import Method

ENDPOINT_PANEL = Panel("Model behind an HTTP address")


_SEND_DOCUMENTS = choice_type("SendDocuments", get_args(SendDocuments))

ENDPOINT = (
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
        help="How documents travel. text: within the message; for rag-middle serve also "
        "marked (the same with markers) and field (beside the messages), and the server "
        "applies methods. auto: field there, text elsewhere.",
    ),
    ENDPOINT_PANEL.flag(
        "timeout", float, ENDPOINT_SECONDS, min=0.001, help="Seconds that a request may take."
    ),
)
"""Where a model is that is not loaded here; arguments of `EndpointModel`."""

_DEFAULTS = {parameter.name: parameter.default for parameter in (*ENDPOINT, *LOADING)}


def open_endpoint(
    options: Mapping[str, Any], model: str | None, loading: Mapping[str, Any], **more: Any
) -> EndpointModel | None:
    """The model behind an address; None where no address is named.

    Args:
        options: values of `ENDPOINT`.
        loading: values of `LOADING`, none of which means anything there.
        more: arguments of `EndpointModel`.

    Raises:
        EndpointError: it cannot be asked, it was said how to load it, or options of an endpoint
            were given without one.
    """
    is_remote = "endpoint" in options
    for name, value in (loading if is_remote else options).items():
        if value == _DEFAULTS[name]:
            continue
        if is_remote:
            raise EndpointConfigError(
                Argument(name), " says how to load a model, and this one runs at ",
                Argument("endpoint"), ": set that on its server.",
            )  # fmt: skip
        raise EndpointConfigError(
            Argument(name), " is about a model behind an HTTP address: name that with ",
            Argument("endpoint"), " too.",
        )  # fmt: skip
    if not is_remote:
        return None
    from rag_middle.endpoint import EndpointModel

    return EndpointModel(model=model, **options, **more)


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
