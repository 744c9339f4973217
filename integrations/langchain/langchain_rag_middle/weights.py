"""Weights: loaded when first needed, once for all that ask for the same."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from rag_middle import UnsupportedGenerationError
from rag_middle.checkpoints import cached_file
from rag_middle.options import LOADING_OPTIONS, without_secrets
from rag_middle.tools.formats import format_of

if TYPE_CHECKING:
    from rag_middle import RagMiddleModel


class Weights:
    """A model that is there, or that is loaded on first use.

    What names the same weights shares them: a copy of a LangChain model (``bind``,
    ``configurable_fields``), the same model under another method, and a chat model next to an LLM.
    `rag_middle.generation.sharing` says how long they stay. Requests on a model leave nothing
    behind, and take turns.

    Args:
        arguments: of `rag_middle.generation.shared_model`, the name first among them.
        model: a loaded model instead.
    """

    def __init__(self, arguments: Mapping[str, Any], model: RagMiddleModel | None = None) -> None:
        self._arguments = dict(arguments)
        self._model = model
        self._lock = threading.Lock()

    @property
    def model(self) -> RagMiddleModel:
        """The model, loaded now if it is not there; raises as `shared_model`."""
        with self._lock:
            if self._model is None:
                from rag_middle.generation import shared_model

                self._model = shared_model(**_revealed(self._arguments))
            return self._model

    @property
    def name(self) -> str | None:
        """The name of the model, as far as it has one; loads nothing."""
        if self._arguments:
            return str(self._arguments["name_or_path"])
        assert self._model is not None
        name: str | None = self._model.model.config.name_or_path
        return name

    @property
    def identity(self) -> dict[str, Any]:
        """What says which weights these are, as plain values; loads nothing.

        By name, all that was said about loading, but for tokens of the hub. What changes under the
        same name and revision, or in a loaded model, does not show.
        """
        if self._arguments:
            stated = {**self._arguments}
            for name in LOADING_OPTIONS:
                stated[name] = without_secrets(stated.get(name))
            tokenizer = stated.get("tokenizer")
            stated["tokenizer"] = getattr(tokenizer, "name_or_path", tokenizer)
            return {name: str(value) for name, value in stated.items() if value}
        assert self._model is not None
        config: Any = self._model.model.config
        return {
            "revision": str(getattr(config, "_commit_hash", None)),
            "dtype": str(self._model.model.dtype).removeprefix("torch."),
            "context_window": str(self._model.context_window),
        }

    def __reduce__(self) -> tuple[Any, ...]:
        if not self._arguments:
            raise UnsupportedGenerationError(
                "Weights are not pickled, and this model was given a loaded one: make it from a "
                "folder or a name (model='...'), from which it is loaded again."
            )
        secrets = {name: without_secrets(self._arguments.get(name)) for name in LOADING_OPTIONS}
        return Weights, ({**self._arguments, **secrets},)

    def __deepcopy__(self, memo: object) -> Weights:
        return self  # copies of a LangChain model share the weights


def hidden(value: Any) -> Any:
    """A secret that nothing shows: a text, or a mapping that holds some."""
    if isinstance(value, Mapping):
        return {name: hidden(item) for name, item in value.items()}
    return SecretStr(value) if isinstance(value, str) else value


def _revealed(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _revealed(item) for name, item in value.items()}
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def release_models() -> None:
    """Free the weights that no model uses any longer, see `rag_middle.generation`."""
    from rag_middle.generation import release_models  # needs PyTorch, which importing this does not

    release_models()


def known_context_window(model: Any, revision: str | None = None) -> int | None:
    """Tokens that fit, as far as that is known without loading anything.

    Args:
        model: a folder, the name of a model, or a loaded one.
        revision: of the model.
    """
    if not isinstance(model, str | Path):
        found: int | None = model.context_window
        return found
    file = _known_file(model, "config.json", revision)
    stated = {} if file is None else json.loads(file.read_bytes())
    window = stated.get("text_config", stated).get("max_position_embeddings")
    return window if isinstance(window, int) else None


def known_to_call_tools(model: Any, tokenizer: Any = None, revision: str | None = None) -> bool:
    """Whether the model calls tools, as far as that is known without loading anything.

    Args:
        model: as of `known_context_window`.
        tokenizer: where the tokenizer comes from instead.
        revision: of the model.
    """
    if not isinstance(model, str | Path):
        return bool(model.calls_tools)
    source = tokenizer if isinstance(tokenizer, str | Path) else model
    file = _known_file(source, "chat_template.jinja", revision)
    if file is not None:
        template = file.read_text(encoding="utf-8")
    else:
        settings = _known_file(source, "tokenizer_config.json", revision)
        stated = {} if settings is None else json.loads(settings.read_bytes())
        template = json.dumps(stated.get("chat_template", ""))
    return format_of(template) is not None and "tools" in template


def _known_file(model: str | Path, name: str, revision: str | None) -> Path | None:
    """A file of a folder, or of a model in the local cache of the hub."""
    folder = Path(os.path.expanduser(model))
    if os.path.isdir(folder):
        file = folder / name
        return file if file.is_file() else None
    return cached_file(str(model), name, revision=revision)
