"""Names that HuggingFacePipeline and ChatHuggingFace have for what is called otherwise here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from langchain_rag_middle.arguments import LOADING, renamed
from rag_middle import UnsupportedGenerationError
from rag_middle.plain_data import check_keywords

__all__ = ["FromModelId", "with_peers_names"]

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
