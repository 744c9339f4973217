"""Weights: loaded when first needed, once for all that ask for the same."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from rag_middle import UnsupportedGenerationError
from rag_middle.checkpoints import cached_file, checkpoint_states
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
        self._loaded_files: list[str | None] | None = None
        self._lock = threading.Lock()

    @classmethod
    def of(cls, **arguments: Any) -> Weights:
        """The weights that these arguments name."""
        arguments["name_or_path"] = str(arguments["name_or_path"])
        for name in LOADING_OPTIONS:
            if name in arguments:
                arguments[name] = _revealed(arguments[name])
        return cls(arguments)

    @property
    def loaded(self) -> RagMiddleModel | None:
        """The model, if it is there already."""
        return self._model

    @property
    def model(self) -> RagMiddleModel:
        """The model, loaded now if it is not there.

        Raises:
            As `shared_model`.
        """
        with self._lock:
            if self._model is None:
                from rag_middle.generation import shared_model

                self._model = shared_model(**self._arguments)
                # Now: they may change later, and the hub may have had another commit.
                self._loaded_files = checkpoint_states(self._arguments)
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
        """What tells these weights from others now, as JSON-ready values; loads nothing.

        By name, the state of the files goes with it: the one that was loaded, or that would be. Of
        a model that was passed, adapters that were switched and weights that were edited show.
        """
        return self._identity_by_name() if self._arguments else self._identity_of_loaded()

    def _identity_by_name(self) -> dict[str, Any]:
        given: dict[str, Any] = {}
        for name, value in self._arguments.items():
            if name in LOADING_OPTIONS:  # a token changes no weights
                value = without_secrets(value)
            if name == "tokenizer" and not isinstance(value, str | Path):
                given[name] = _tokenizer_identity(value)
            elif value:
                given[name] = _plain(value)
        return {**given, "checkpoint": self._loaded_files or checkpoint_states(self._arguments)}

    def _identity_of_loaded(self) -> dict[str, Any]:
        assert self._model is not None
        network: Any = self._model.model
        config = network.config
        return {
            "name_or_path": config.name_or_path,
            "revision": getattr(config, "_commit_hash", None),
            "dtype": str(network.dtype).removeprefix("torch."),
            "quantization_config": _plain(getattr(config, "quantization_config", None)),
            "attn_implementation": getattr(config, "_attn_implementation", None),
            "context_window": self._model.context_window,
            "checkpoint": self._model.fingerprint(),
            "generation_config": _plain(network.generation_config),
            "tokenizer": _tokenizer_identity(self._model.tokenizer),
        }

    def __reduce__(self) -> tuple[Any, ...]:
        if not self._arguments:
            raise UnsupportedGenerationError(
                "Weights are not pickled, and this model was given a loaded one: make it from a "
                "folder or a name (model='...'), from which it is loaded again."
            )
        arguments = {
            name: without_secrets(value) if name in LOADING_OPTIONS else value
            for name, value in self._arguments.items()
        }
        return Weights, (arguments,)

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
    if file is None:
        return None
    text = file.read_bytes()
    if b'"factor"' in text:
        return _scaled_window(file.parent)
    config = json.loads(text)
    window = config.get("text_config", config).get("max_position_embeddings")
    return window if isinstance(window, int) else None


def known_to_call_tools(model: Any, tokenizer: Any = None, revision: str | None = None) -> bool:
    """Whether the model calls tools, as far as that is known without loading anything.

    Args:
        model: as of `known_context_window`.
        tokenizer: that is used instead of the model's own.
        revision: of the model.
    """
    if not isinstance(model, str | Path):
        return bool(model.calls_tools)
    source = model if tokenizer is None else tokenizer
    if not isinstance(source, str | Path):
        from rag_middle.generation.tool_use import reads_calls

        return reads_calls(source)
    settings = _known_file(source, "tokenizer_config.json", revision)
    stated = {} if settings is None else json.loads(settings.read_bytes())
    file = _known_file(source, "chat_template.jinja", revision)
    written = stated.get("chat_template", "") if file is None else file.read_text(encoding="utf-8")
    template = written if isinstance(written, str) else json.dumps(written)  # several, with names
    readable = format_of(template) is not None or bool(stated.get("response_template"))
    return readable and "tools" in template


def _known_file(model: str | Path, name: str, revision: str | None) -> Path | None:
    """A file of a folder, or of a model in the local cache of the hub."""
    path = Path(os.path.expanduser(model)) / name
    if path.is_file():
        return path
    if os.path.isdir(path.parent):
        return None
    return cached_file(str(model), name, revision=revision)


def _scaled_window(folder: Path) -> int | None:
    """What RoPE scaling makes of the window, which needs the classes of transformers."""
    from transformers import AutoConfig

    from rag_middle.attention import context_window

    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError):  # of a family that this transformers does not know
        return None
    return context_window(config.get_text_config(decoder=True))


#: Of tokenizers: a digest, behind the parts that are quick to compare, as they were at that time.
_tokenizers: weakref.WeakKeyDictionary[Any, tuple[str, str]] = weakref.WeakKeyDictionary()


def _tokenizer_identity(tokenizer: Any) -> str:
    """A digest of a tokenizer; its vocabulary is read again where its other parts have changed."""
    from rag_middle.generation.identity import tokenizer_sha256

    backend = getattr(tokenizer, "backend_tokenizer", None)
    parts = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
    stated = [
        type(tokenizer).__qualname__,
        len(tokenizer),
        tokenizer.special_tokens_map,
        tokenizer.chat_template,
        getattr(tokenizer, "response_template", None),
        [repr(getattr(backend, part, None)) for part in parts],
    ]
    text = repr(stated)
    known = _tokenizers.get(tokenizer)
    if known is None or known[0] != text:
        _tokenizers[tokenizer] = known = (text, tokenizer_sha256(tokenizer))
    return hashlib.sha256(repr(known).encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    """`value` as JSON can write it."""
    if hasattr(value, "to_dict"):
        value = value.to_dict()
    return json.loads(json.dumps(value, default=str, sort_keys=True))
