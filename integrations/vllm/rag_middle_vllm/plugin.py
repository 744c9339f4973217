"""The plugin: what vLLM runs in each of its processes.

Functions of vLLM are wrapped, and behave as ever unless the option ``rag_middle`` is given:
`EngineArgs.create_engine_config`, to read profiles before the config is made; `load_model` of every
model loader, to change the layers of the model that it returns; and, for methods that look at the
documents of each prompt, what receives requests and looks for them in the prefix cache (see
`rag_middle_vllm.documents`). What renders prompts takes the markers off marked text in every engine
(see `rag_middle_vllm.frontend`).
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from rag_middle.errors import RagMiddleError
from rag_middle_vllm.hooks import hook

#: The oldest version whose modules this package knows, and the newest it was run with.
OLDEST, NEWEST = (0, 32), (0, 32)
_OLDEST = f"vLLM {'.'.join(map(str, OLDEST))} or newer"

# vLLM shows what is logged below its own name.
_logger = logging.getLogger("vllm.rag_middle")
_changed: WeakSet[Any] = WeakSet()


class UnsupportedVLLMError(RagMiddleError, ImportError):
    """The installed vLLM is too old, or lacks what the plugin takes hold of."""


def hook_engine() -> None:
    """Wrap vLLM's functions; more than once does no more.

    Raises:
        UnsupportedVLLMError: this vLLM has others, so that the option would be ignored.
    """
    try:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.model_executor.model_loader import BaseModelLoader

        hook(BaseModelLoader, load_model=_changing_layers)
        hook(EngineArgs, create_engine_config=_reading_profiles)
        loaders = BaseModelLoader.__subclasses__()
        for loader in loaders:
            _hook_loader(loader)
            loaders += loader.__subclasses__()
    except (ImportError, AttributeError) as error:
        raise UnsupportedVLLMError(
            f"rag-middle-vllm finds no place for itself in {_vllm()} ({error}): it needs "
            f"{_OLDEST}. Install one of these, or uninstall rag-middle-vllm to go on without."
        ) from error
    # Loaders that other plugins register later may have a `load_model` of their own.
    BaseModelLoader.__init_subclass__ = classmethod(_hook_loader)
    try:
        _hook_frontend()
    except (ImportError, AttributeError) as error:
        _logger.warning(
            "rag-middle: %s lacks what renders prompts (%s), so that marked text reaches the model "
            "with its markers, and /v1/models does not say the method: send plain text.",
            _vllm(),
            error,
        )
    # They are experimental: without them, methods of the whole engine are served all the same.
    with suppress(ImportError, AttributeError):
        _hook_requests()


def _hook_frontend() -> None:
    """Let prompts lose their markers, and `/v1/models` say the method.

    Raises:
        ImportError, AttributeError: this vLLM has other functions.
    """
    from vllm.entrypoints.openai.models.serving import OpenAIServingModels
    from vllm.renderers import BaseRenderer, online_renderer

    from rag_middle_vllm.frontend import hook_harmony, hook_models, hook_texts

    hook_texts(BaseRenderer)
    hook_harmony(online_renderer)
    hook_models(OpenAIServingModels)


def _hook_requests() -> None:
    """Let requests carry documents, in the processes that receive and schedule them.

    Raises:
        ImportError, AttributeError: this vLLM has other functions.
    """
    from vllm.renderers.online_renderer import OnlineRenderer
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.engine.input_processor import InputProcessor

    from rag_middle_vllm.documents.admission import hook_admission, hook_cache
    from rag_middle_vllm.documents.openai import hook_renderer

    hook_cache(KVCacheManager)
    hook_renderer(OnlineRenderer)
    hook_admission(InputProcessor)


def _hook_loader(loader: type[Any], /, **_: object) -> None:
    if "load_model" in vars(loader):
        hook(loader, load_model=_changing_layers)


def _reading_profiles(create_engine_config: Callable[..., Any]) -> Callable[..., Any]:
    def create(self: Any, *args: Any, **kwargs: Any) -> Any:
        from rag_middle_vllm.options import DOCUMENTS, OPTION, resolved

        for name in ("hf_overrides", "additional_config"):
            values = getattr(self, name, None)
            if isinstance(values, dict) and OPTION in values:
                check_vllm()
                option = resolved(values[OPTION])
                setattr(self, name, values | {OPTION: option})
                if DOCUMENTS in option and self.enable_chunked_prefill is None:
                    self.enable_chunked_prefill = False  # documents are read in one piece
        return create_engine_config(self, *args, **kwargs)

    return create


def _changing_layers(load_model: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(load_model)

    def load(*args: Any, **kwargs: Any) -> Any:
        configs = signature.bind(*args, **kwargs).arguments
        vllm_config, model_config = configs["vllm_config"], configs["model_config"]
        from rag_middle_vllm.options import DOCUMENTS, method_of, option_of

        option = option_of(vllm_config, model_config)
        if option is None:
            return load_model(*args, **kwargs)
        check_vllm()
        # Before the weights, which take their time.
        method = None if DOCUMENTS in option else method_of(option)
        model = load_model(*args, **kwargs)
        if model not in _changed:  # by a loader inside this one
            if method is None:
                _enable_documents(model, option[DOCUMENTS], vllm_config, model_config)
            else:
                _change(model, method, vllm_config, model_config)
            _changed.add(model)
        return model

    return load


def _change(model: Any, method: Any, vllm_config: Any, model_config: Any) -> None:
    from rag_middle_vllm.layers import rotate_layers

    rotations = rotate_layers(model, method, vllm_config, model_config)
    source = method.provenance.source if method.provenance else method.name
    if not rotations:
        _logger.warning(
            "rag-middle: %s leaves all layers of this rank as they are: its parameters, or the "
            "layers that it names, change none of them.",
            source,
        )
        return
    described = ", ".join(
        f"{index}: /{rotation.scale:g}"
        + (f" base x{rotation.base_factor:g}" if rotation.base_factor != 1 else "")
        for index, rotation in rotations.items()
    )
    _logger.info("rag-middle: %s, positions by layer: %s", source, described)


def _enable_documents(model: Any, option: Any, vllm_config: Any, model_config: Any) -> None:
    from rag_middle_vllm.documents.methods import document_methods
    from rag_middle_vllm.documents.runners import serve_documents

    try:
        _hook_requests()
    except (ImportError, AttributeError) as error:
        raise UnsupportedVLLMError(
            f"rag-middle-vllm reads documents in vLLM {'.'.join(map(str, NEWEST))}; {_vllm()} "
            f"lacks what receives them: {error}. Use that version, or methods of the whole engine."
        ) from error
    methods = document_methods(option)
    serve_documents(model, methods, vllm_config, model_config)
    _logger.info("rag-middle: requests may name the methods %s", ", ".join(sorted(methods)))


def check_vllm() -> None:
    """Make sure that this vLLM is not too old, and warn of one that the plugin was not run with.

    Raises:
        UnsupportedVLLMError: it is too old.
    """
    import vllm

    numbers = re.match(r"(\d+)\.(\d+)", vllm.__version__)
    version = tuple(map(int, numbers.groups())) if numbers else NEWEST  # a build without a number
    if version < OLDEST:
        raise UnsupportedVLLMError(f"rag-middle-vllm needs {_OLDEST}, and this is {_vllm()}.")
    if version > NEWEST:
        _logger.warning(
            "rag-middle-vllm was run with vLLM %s, and this is %s: every layer is checked as the "
            "model loads, but compare answers.",
            ".".join(map(str, NEWEST)),
            vllm.__version__,
        )


def _vllm() -> str:
    try:
        from vllm import __version__
    except ImportError:
        return "an environment without vLLM"
    return f"vLLM {__version__}"
