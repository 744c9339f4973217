"""Names of arguments: what they are called here and elsewhere, and which are none."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, SecretStr

from rag_middle import UnsupportedGenerationError
from rag_middle.integration import (
    ANSWERS,
    LOADING,
    named_model,
    split_loading,
    unknown_option,
    warn_caller,
)
from rag_middle.integration import OPTIONS as DECLARED
from rag_middle.integration import renamed as own_names

#: What LangChain's users know an option of a request by.
_RENAMED = {"max_new_tokens": "max_tokens"}
#: Options that are no fields: messages, streams and callbacks of LangChain stand in their place.
_NOT_FIELDS = {"allow_control_tokens", "cancel", "missing_documents_hint", "system"}
_NOT_FIELDS |= {"tools", "tool_choice", "response_format"}  # of calls only: bind() or bind_tools()

#: Fields that are options of a request, and what `GenerationOptions` calls them.
OPTIONS = {_RENAMED.get(name, name): name for name in DECLARED if name not in _NOT_FIELDS}
#: Fields that no call can change: weights are loaded once.
FIXED = ("model", *LOADING, "token")
#: Names of other integrations.
_PEERS = {"model_id": "model", "model_name": "model", "num_return_sequences": "n"}
#: What models behind an address need, and a local one does not.
_OF_SERVICES = ("api_key", "base_url", "max_retries", "timeout")

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


def renamed(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments under the names of this package; raises as `rag_middle.options.renamed`."""
    return {_RENAMED.get(name, name): value for name, value in own_names(arguments, _PEERS).items()}


def refuse_unknown(arguments: Mapping[str, Any], names: Collection[str]) -> None:
    """Refuse options that do not exist; what only a service needs is named in a warning.

    Raises:
        UnsupportedGenerationError: an option that is not known, as `RagMiddleModel` refuses it.
    """
    for name, value in arguments.items():
        if name in _OF_SERVICES:
            message = f"{name!r} has no effect: the model runs in this process."
            if value is not None:  # as pages of LangChain write it
                warn_caller(IgnoredArgumentWarning(message))
        elif name not in names:
            own = {*OPTIONS, ANSWERS.name, "method", "method_options", "documents", "tools"}
            raise unknown_option(name, sorted({*names} & (own | {*LOADING})))


def constructor_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a constructor under the names of this package.

    ``model_kwargs`` are fields of loading, ``token``, options of answers, or `model_options`;
    ``pipeline_kwargs`` are options. Without a model it is the default one. A loaded model is
    wrapped, and what a pipeline was made with holds where nothing else is said.

    Raises:
        UnsupportedGenerationError: one thing twice, or a model of another kind.
        ModelNotFoundError: the default model is not here.
    """
    fields = renamed(arguments)
    loading, answers = split_loading(fields.pop("model_kwargs", None))
    fields = _merged(fields, {**_loading(loading), **renamed(answers)}, "model_kwargs")
    pipeline_kwargs = fields.pop("pipeline_kwargs", None)
    if pipeline_kwargs is not None:
        from rag_middle.generation import transformers_options  # needs PyTorch

        options = transformers_options("pipeline_kwargs", pipeline_kwargs)
        fields = _merged(fields, renamed(options), "pipeline_kwargs")
    if fields.get("model") is None:
        fields["model"] = named_model(None)
    return _with_loaded(fields)


def _merged(fields: Mapping[str, Any], more: Mapping[str, Any], source: str) -> dict[str, Any]:
    twice = sorted(name for name in more if fields.get(name) is not None)
    if twice:
        raise UnsupportedGenerationError(
            f"{', '.join(twice)} was given in {source} and beside it: pass it once."
        )
    return {**fields, **more}


#: Of `model_kwargs`, what finding a tokenizer needs as well.
_OF_BOTH = ("cache_dir", "force_download", "local_files_only", "proxies", "subfolder")


def hidden(value: Any) -> Any:
    """A secret that nothing shows: a text, or a mapping that holds some."""
    if isinstance(value, Mapping):
        return {name: hidden(entry) for name, entry in value.items()}
    return SecretStr(value) if isinstance(value, str) else value


def revealed(value: Any) -> Any:
    """The opposite of `hidden`."""
    if isinstance(value, Mapping):
        return {name: revealed(entry) for name, entry in value.items()}
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def _loading(model_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    fields = {name: value for name, value in model_kwargs.items() if name in (*LOADING, "token")}
    options = {name: value for name, value in model_kwargs.items() if name not in fields}
    of_both = {name: options[name] for name in _OF_BOTH if name in options}
    more = {"model_options": options, "tokenizer_options": of_both}
    return {**{name: value for name, value in more.items() if value}, **fields}


def _with_loaded(fields: dict[str, Any]) -> dict[str, Any]:
    model = fields.get("model")
    if model is None or isinstance(model, str | Path):
        return fields
    from rag_middle import RagMiddleModel

    if isinstance(model, RagMiddleModel):
        return fields
    from rag_middle.generation import loaded_parts

    network, tokenizer, options = loaded_parts(model, fields.pop("tokenizer", None))
    own = {name: fields.pop(name) for name in ("context_window", "self_check") if name in fields}
    own = {name: value for name, value in own.items() if value is not None}
    fields["model"] = RagMiddleModel(network, tokenizer, **own)
    return {**renamed(options), **fields}
