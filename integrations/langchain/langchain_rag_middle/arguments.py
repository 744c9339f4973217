"""Names of arguments: what they are called here and elsewhere, and which are none."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field

from rag_middle import UnsupportedGenerationError
from rag_middle.notices import pass_over, warn_caller
from rag_middle.options import ANSWERS, unknown_option
from rag_middle.options import OPTIONS as DECLARED
from rag_middle.plain_data import check_keywords

#: What LangChain's users know an option of a request by.
_RENAMED = {"max_new_tokens": "max_tokens"}
#: Options that are no fields: messages, streams and callbacks of LangChain stand in their place.
_NOT_FIELDS = {"allow_control_tokens", "cancel", "missing_documents_hint", "system"}
_NOT_FIELDS |= {"tools", "tool_choice", "response_format"}  # of calls only: bind() or bind_tools()

#: Fields that are options of a request, and what `GenerationOptions` calls them.
OPTIONS = {_RENAMED.get(name, name): name for name in DECLARED if name not in _NOT_FIELDS}
#: Fields that say what is loaded, and what `RagMiddleModel.from_pretrained` calls them.
LOADING = {
    "model": "name_or_path",
    "revision": "revision",
    "gguf_file": "gguf_file",
    "tokenizer": "tokenizer",
    "dtype": "dtype",
    "device": "device",
    "device_map": "device_map",
    "quantization_config": "quantization_config",
    "attn_implementation": "attn_implementation",
    "trust_remote_code": "trust_remote_code",
    "context_window": "context_window",
    "self_check": "self_check",
    "model_options": "model_options",
    "tokenizer_options": "tokenizer_options",
}
#: Fields that no call can change: weights are loaded once.
FIXED = (*LOADING, "token")
_ALIASES = {
    **_RENAMED,
    "num_return_sequences": "n",
    "model_id": "model",
    "model_name": "model",
    "stop_sequences": "stop",
    "chat_template_kwargs": "template_options",
}
#: What models behind an address need, and why it has no effect here.
_OF_SERVICES = {
    "api_key": "A local model needs none.",
    "base_url": "A local model has none.",
    "max_retries": "A local model has no connection to try again.",
    "timeout": "Leave a stream, or cancel an asynchronous call, to end a generation.",
}
# Warnings point at the user's own line, wherever it stands on the thread's stack.
pass_over(
    *"asyncio concurrent contextlib langchain langchain_classic langchain_core "
    "langchain_rag_middle langgraph pydantic threading".split()
)

#: What LangChain itself adds to calls, for its own use.
FRAMEWORK = frozenset({"stream", "ls_structured_output_format", "structured_output_format"})


class IgnoredArgumentWarning(UserWarning):
    """An argument was given that models behind an address need and a local one does not."""


def option_field(name: str, **others: Any) -> Any:
    """A field with the default and the description that `rag_middle.options` declares.

    Args:
        name: of the option.
        others: arguments of `pydantic.Field`.
    """
    declared = ANSWERS if name == ANSWERS.name else DECLARED[name]
    described = {"default": declared.default, "description": declared.help}
    return Field(**{**described, **others})


def renamed(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments under the names of this package.

    Raises:
        UnsupportedGenerationError: one thing under two names.
    """
    renamed: dict[str, Any] = {}
    for name, value in given.items():
        known = _ALIASES.get(name, name)
        if known in renamed:
            raise UnsupportedGenerationError(
                f"{name} and {known} are the same and were both given: pass one of them."
            )
        renamed[known] = value
    return renamed


def refuse_unknown(given: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """Refuse options that do not exist; what only a service needs is named in a warning.

    Raises:
        UnsupportedGenerationError: an option that is not known, as `RagMiddleModel` refuses it.
    """
    for name in given:
        if name in known:
            continue
        if name not in _OF_SERVICES:
            raise unknown_option(name, sorted([*OPTIONS, ANSWERS.name]))
        warn_caller(
            IgnoredArgumentWarning(f"{name!r} has no effect on {where}. {_OF_SERVICES[name]}")
        )


#: Of `model_kwargs`, what finding a tokenizer needs as well.
_OF_BOTH = ("cache_dir", "force_download", "local_files_only", "proxies", "subfolder")


class FromModelId:
    """The constructor of ``HuggingFacePipeline``."""

    @classmethod
    def from_model_id(
        cls,
        model_id: str,
        task: str = "text-generation",
        backend: str = "default",
        device: int | str | None = None,
        device_map: str | Mapping[str, Any] | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        pipeline_kwargs: Mapping[str, Any] | None = None,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> Self:
        """A model as ``HuggingFacePipeline.from_model_id`` makes one; weights come when needed.

        Args:
            model_id: a directory, or a name on the hub.
            task: ``"text-generation"``; there are no others.
            backend: ``"default"``, which is PyTorch; there are no others.
            device: a number of a GPU, -1 for the CPU, or a name; by default a GPU if there is one.
            device_map: how to spread the model instead.
            model_kwargs: for loading: ``dtype``, ``quantization_config``, ``token``, ...
            pipeline_kwargs: options of every call: ``max_new_tokens``, ``do_sample``, ...
            batch_size: `max_batch_size` here.
            kwargs: further fields, `method` among them.

        Raises:
            UnsupportedGenerationError: another task or backend, or options that cannot be served.
        """
        for name, value, only in (
            ("task", task, "text-generation"),
            ("backend", backend, "default"),
        ):
            if value != only:
                raise UnsupportedGenerationError(
                    f"{name}={value!r} is not served: methods run in decoders of transformers "
                    f"under PyTorch. Pass {only!r}, or leave it out."
                )
        if isinstance(device, int):
            device = "cpu" if device < 0 else f"cuda:{device}"
        stated = {
            "device": device,
            "device_map": device_map,
            "model_kwargs": model_kwargs,
            "pipeline_kwargs": pipeline_kwargs,
            "max_batch_size": batch_size,
        }
        rest = {name: value for name, value in stated.items() if value is not None}
        return cls(**{"model": model_id, **_merged(kwargs, rest, "from_model_id")})


def with_peers_names(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a constructor under the names of this package.

    ``pipeline`` is a `model`; ``model_kwargs`` are fields of loading, ``token``, or
    `model_options`; ``pipeline_kwargs`` are options. A loaded model is wrapped, and what a pipeline
    was made with holds where nothing else is said.

    Raises:
        UnsupportedGenerationError: one thing twice, or a model of another kind.
    """
    rest = renamed(arguments)
    if rest.get("pipeline") is not None:
        name = rest.pop("model", None)  # HuggingFacePipeline is told the model's name beside it
        if name is not None and not isinstance(name, str):
            raise UnsupportedGenerationError(
                "model and pipeline were both given: pass one of them."
            )
        rest["model"] = rest["pipeline"]
    rest.pop("pipeline", None)
    rest = _merged(rest, _loading(rest.pop("model_kwargs", None)), "model_kwargs")
    pipeline_kwargs = rest.pop("pipeline_kwargs", None)
    if pipeline_kwargs is not None:
        from rag_middle.generation import transformers_options  # needs PyTorch

        options = transformers_options("pipeline_kwargs", pipeline_kwargs)
        rest = _merged(rest, renamed(options), "pipeline_kwargs")
    return _with_loaded(rest)


def _merged(fields: Mapping[str, Any], more: Mapping[str, Any], source: str) -> dict[str, Any]:
    twice = sorted(name for name in more if fields.get(name) is not None)
    if twice:
        raise UnsupportedGenerationError(
            f"{', '.join(twice)} was given in {source} and beside it: pass it once."
        )
    return {**fields, **more}


def _loading(model_kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    check_keywords("model_kwargs", model_kwargs)
    fields: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for name, value in (model_kwargs or {}).items():
        field = {"torch_dtype": "dtype", "use_auth_token": "token"}.get(name, name)
        if field == "token" or (field in LOADING and field != "model"):
            fields[field] = value
        else:
            options[name] = value
    of_both = {name: options[name] for name in _OF_BOTH if name in options}
    return {
        **fields,
        **({"model_options": options} if options else {}),
        **({"tokenizer_options": of_both} if of_both else {}),
    }


def _with_loaded(fields: dict[str, Any]) -> dict[str, Any]:
    model = fields.get("model")
    if model is None or isinstance(model, str | Path):
        return fields
    from rag_middle import RagMiddleModel

    if isinstance(model, RagMiddleModel):
        return fields
    from rag_middle.generation import loaded_parts

    parts = loaded_parts(model, fields.pop("tokenizer", None))
    own = {name: fields.pop(name) for name in ("context_window", "self_check") if name in fields}
    own = {name: value for name, value in own.items() if value is not None}
    fields["model"] = RagMiddleModel(parts.network, parts.tokenizer, **own)
    return {**renamed(parts.options), **fields}
