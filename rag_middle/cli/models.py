"""Which model answers: the options that say so, and loading it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rag_middle.cli.console import quiet_progress_bars
from rag_middle.cli.options import Threads, group, model_flag
from rag_middle.errors import UnsupportedGenerationError
from rag_middle.options import ENDPOINT_SECONDS

if TYPE_CHECKING:
    from rag_middle.endpoint import EndpointModel
    from rag_middle.generation import RagMiddleModel

_rare = partial(model_flag, None, hidden=True)
_remote = partial(typer.Option, None, rich_help_panel="Model behind an HTTP address")


def _loading(
    *,
    context_window: int | None = _rare(
        min=1, help="Tokens of prompt and answer. Default: its own."
    ),
    dtype: Literal["auto", "bfloat16", "float16", "float32"] | None = _rare(
        help="Number format. Default: auto, as stored."
    ),
    device: str | None = model_flag(None, help="cpu, cuda, cuda:1 ..., or auto to spread it."),
    device_map: str | None = _rare(help="How accelerate spreads it: balanced ..."),
    quantize: Literal["4bit", "8bit"] | None = model_flag(
        None, help="Load fewer bits (bitsandbytes, CUDA)."
    ),
    attn_implementation: str | None = _rare(help="sdpa, eager, flash_attention_2 ..."),
    kernels: Literal["auto", "triton", "torch"] | None = _rare(
        help="Of a method's attention. Default: auto, Triton on a GPU in half precision."
    ),
    revision: str | None = _rare(help="Commit, tag or branch on the hub."),
    gguf_file: str | None = _rare(metavar="NAME", help="In the model's folder or on the hub."),
    trust_remote_code: bool | None = _rare(
        "--trust-remote-code", help="Run code of the model. Read it first."
    ),
    threads: Threads = None,
) -> None:
    """How a model is loaded: arguments of ``RagMiddleModel.from_pretrained``."""


def _endpoint(
    *,
    endpoint: str | None = _remote(
        metavar="URL", help="Ask a model at this OpenAI-compatible address instead."
    ),
    api_key_env: str | None = _remote(
        hidden=True,
        metavar="NAME",
        help="Environment variable with its key. Default: OPENAI_API_KEY, where the address is "
        "local or https; an empty name: no key.",
    ),
    timeout: float | None = _remote(
        hidden=True, min=0.001, help=f"Seconds of a request. Default: {ENDPOINT_SECONDS:g}."
    ),
) -> None:
    """Where a model is that is not loaded here: arguments of `EndpointModel`."""


Loading = Annotated[dict[str, Any], group(_loading)]
Endpoint = Annotated[dict[str, Any], group(_endpoint)]


def placed(loading: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``from_pretrained`` for values of `Loading`: auto is a device map there."""
    arguments = {name: value for name, value in loading.items() if name != "threads"}
    if "quantize" in arguments:
        arguments["quantization_config"] = arguments.pop("quantize")
    if arguments.get("device") == "auto" and "device_map" not in arguments:
        arguments |= {"device": None, "device_map": "auto"}
    return arguments


def load(name: str | None, loading: Mapping[str, Any], **more: Any) -> RagMiddleModel:
    """The model of that name, or the default one, without progress bars."""
    import torch
    from joblib import cpu_count

    from rag_middle.generation import RagMiddleModel
    from rag_middle.small_model import default_model

    if "threads" not in loading:  # as many as PyTorch takes, within the quota of a container
        torch.set_num_threads(min(torch.get_num_threads(), cpu_count()))
    chosen = default_model() if name is None else name
    quiet_progress_bars()
    return RagMiddleModel.from_pretrained(chosen, **more, **placed(loading))


def open_endpoint(
    options: Mapping[str, Any], model: str | None, loading: Mapping[str, Any], **more: Any
) -> EndpointModel | None:
    """The model behind an address; None where no address is named.

    Takes values of `Endpoint` and `Loading`, none of which means anything there, and more arguments
    of `EndpointModel`.

    Raises:
        RagMiddleError: it cannot be asked so, or options of an endpoint were given without one.
    """
    if "endpoint" not in options:
        _refuse(options, "is about a model behind an HTTP address: name it with --endpoint too.")
        return None
    _refuse(loading, "says how to load a model, and that of --endpoint runs elsewhere.")
    from rag_middle.endpoint import EndpointModel

    return EndpointModel(model=model, **options, **more)


def _refuse(options: Iterable[str], why: str) -> None:
    """Raise `UnsupportedGenerationError` for options that say nothing here."""
    for name in options:
        raise UnsupportedGenerationError(f"--{name.replace('_', '-')} {why}")
