"""Models and tokenizers from a directory, the local cache or the hub."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any, TypedDict

import torch
import transformers.utils
from huggingface_hub import HfApi
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rag_middle.checkpoints import cached_file
from rag_middle.errors import (
    FileFormatError,
    ModelNotFoundError,
    UnsupportedGenerationError,
)
from rag_middle.generation.gguf import (
    HUB_OPTIONS,
    dequantised_model,
    dequantised_tokenizer,
    find_gguf,
)
from rag_middle.model_files import bad_model_file, format_errors, named_backends
from rag_middle.notices import BackendFallbackWarning, warn_caller
from rag_middle.plain_data import check_keywords, parse_json
from rag_middle.registry import suggest
from rag_middle.small_model import HUB_NAME

#: Options of loading that say how files are reached.
_ACCESS = HUB_OPTIONS | {"proxies"}
_BASE = "base_model_name_or_path"  # in the config of an adapter
#: Seconds to wait for the hub to say whether it has a model.
_HUB_TIMEOUT_S = 10.0


class LoadingKwargs(TypedDict, total=False):
    """How model and tokenizer are loaded, as `RagMiddleModel.from_pretrained` describes it."""

    dtype: str | torch.dtype
    device: str | torch.device | None
    device_map: str | Mapping[str, Any] | None
    quantization_config: Any
    attn_implementation: str | None
    revision: str | None
    gguf_file: str | None
    trust_remote_code: bool
    tokenizer: PreTrainedTokenizerBase | str | Path | None
    model_options: Mapping[str, Any] | None
    tokenizer_options: Mapping[str, Any] | None


def load_model(name_or_path: str | Path, loading: Mapping[str, Any]) -> PreTrainedModel:
    """A causal language model in eval mode, on its device.

    Without `device`, `device_map` and `quantization_config`: the first GPU if there is one, else
    the CPU.

    Raises:
        ModelNotFoundError: neither here nor to be fetched.
        FileFormatError: its config is damaged, or of another model than its weights.
        UnsupportedGenerationError: the model comes with code of its own.
    """
    named, dtype = os.path.expanduser(str(name_or_path)), loading.get("dtype", "auto")
    options = {"revision": loading.get("revision"), **(loading.get("model_options") or {})}
    source = _source(
        "model", named, options, loading.get("gguf_file"), partial(dequantised_model, dtype=dtype)
    )
    if dtype == "auto" and source == HUB_NAME:
        # Few processors compute bfloat16, in which it is stored, faster; and ties are rarer here.
        dtype = "float32"
    device, device_map = loading.get("device"), loading.get("device_map")
    quantization = loading.get("quantization_config")
    if isinstance(quantization, str):
        quantization = _quantization(quantization, dtype)
    target = None
    if quantization is not None and device is not None:  # quantised weights cannot be moved
        device_map = {"": str(_device(device))}
    elif device_map is None and quantization is None:
        target = _device(device)
    base = _base_of_adapter(source)
    if base != source:  # named by a file, not by the caller, so it is not fetched
        options["local_files_only"] = True
    attn_implementation = loading.get("attn_implementation")
    try:
        with format_errors(source, "config.json"):
            if "config" not in options and not _lacks(base, "config.json"):
                attn_implementation = checked_backend(base, attn_implementation, options)
            arguments = {
                "dtype": dtype,
                "device_map": device_map,
                "quantization_config": quantization,
                "attn_implementation": attn_implementation,
                "trust_remote_code": loading.get("trust_remote_code", False),
                **options,
            }
            arguments = {name: value for name, value in arguments.items() if value is not None}
            outcome: Any = AutoModelForCausalLM.from_pretrained(
                source, output_loading_info=True, **arguments
            )
    except (OSError, FileFormatError) as error:
        if isinstance(error, OSError) or _lacks(base, "config.json"):
            raise _not_found("model", base, options, error) from error
        raise
    model: PreTrainedModel
    model, loaded = outcome
    if missing := sorted(loaded["missing_keys"]):  # transformers would draw them at random
        reason = f"it asks for {len(missing)} tensors that the weights lack, such as {missing[0]}."
        raise bad_model_file(source, "config.json", reason)
    if source != named:
        model.config._name_or_path = model.name_or_path = named
    if target is not None:
        model.to(target)  # type: ignore[arg-type]
    model.eval()
    return model


def checked_backend(
    source: str, attn_implementation: str | None = None, options: Mapping[str, Any] | None = None
) -> str | None:
    """The attention to load a model with: the one asked for, else what its config names.

    Flash attention that is not installed gives way to sdpa: transformers would fetch a kernel.

    Args:
        source: directory or name on the hub.
        attn_implementation: that the caller asked for; it may be a kernel of the hub.
        options: of transformers' own loading, some of which say how files are reached.

    Raises:
        FileFormatError: the config names code of the hub that the caller did not ask for.
        OSError: there is no config.
    """
    access = {name: value for name, value in (options or {}).items() if name in _ACCESS}
    config, _ = PretrainedConfig.get_config_dict(source, **access)
    backends = named_backends(config)
    for backend in backends:
        if "/" in backend and backend != attn_implementation:
            reason = (
                f"it names {backend!r}, code that would be fetched from the hub and run. Take it "
                "out, or ask for it yourself with attn_implementation."
            )
            raise bad_model_file(source, "config.json", reason)
    flash = next((name for name in backends if name.startswith("flash_attention")), None)
    name = attn_implementation or flash
    if name is None or not name.startswith("flash_attention"):
        return name
    number = name.removeprefix("flash_attention").lstrip("_")
    available = getattr(transformers.utils, f"is_flash_attn_{number}_available", None)
    if available is None or available():
        return name  # transformers knows better what it does not know
    warn_caller(
        BackendFallbackWarning(
            f"{name} is not available here (it needs a CUDA GPU and the flash-attn package): "
            "using sdpa, which gives the same results. `pip install flash-attn`, or pass "
            "attn_implementation='sdpa' (--attn-implementation sdpa)."
        )
    )
    return "sdpa"


def check_loading(loading: Mapping[str, Any]) -> None:
    """Refuse arguments of `load_model` that no model could be loaded with.

    Raises:
        UnsupportedGenerationError: they contradict each other, name what is not there, or need a
            package that is not installed.
    """
    device, device_map = loading.get("device"), loading.get("device_map")
    quantization_config = loading.get("quantization_config")
    attn_implementation = loading.get("attn_implementation")
    check_keywords("model_options", loading.get("model_options"))
    check_keywords("tokenizer_options", loading.get("tokenizer_options"))
    _check_dtype(loading.get("dtype", "auto"))
    if device_map is not None and device is not None:
        raise UnsupportedGenerationError(
            f"device={device!r} and device_map={device_map!r} both say where the model "
            "goes: pass one of them."
        )
    if device_map is not None and find_spec("accelerate") is None:
        raise UnsupportedGenerationError(
            "device_map needs the accelerate package: pip install accelerate. To put the whole "
            "model on one device, pass device='cuda' instead."
        )
    _device(device)
    if isinstance(quantization_config, str):
        _quantization(quantization_config, "auto")
    backends = {"eager", *ALL_ATTENTION_FUNCTIONS.valid_keys()}
    name = "eager" if attn_implementation is None else str(attn_implementation)
    if name not in backends and "/" not in name and not name.startswith("flash_attention"):
        raise UnsupportedGenerationError(
            f"There is no attn_implementation {name!r}.{suggest(name, backends)} Use sdpa, "
            "eager, or flash_attention_2 with its package."
        )


def load_tokenizer(name_or_path: str | Path, loading: Mapping[str, Any]) -> PreTrainedTokenizerBase:
    """The tokenizer to use with a model: the one chosen in `loading`, else the model's own.

    Raises:
        ModelNotFoundError: neither here nor to be fetched.
        FileFormatError: one of its files is damaged.
    """
    chosen, gguf_file = loading.get("tokenizer"), None
    if isinstance(chosen, PreTrainedTokenizerBase):
        return chosen
    options: dict[str, Any] = {"trust_remote_code": loading.get("trust_remote_code", False)}
    if chosen is None:  # revision and file are the model's
        options["revision"], gguf_file = loading.get("revision"), loading.get("gguf_file")
    options |= loading.get("tokenizer_options") or {}
    named = os.path.expanduser(str(chosen or name_or_path))
    source = _source("tokenizer", named, options, gguf_file, dequantised_tokenizer)
    options = {name: value for name, value in options.items() if value is not None}
    try:
        with format_errors(source, "tokenizer.json, tokenizer_config.json or config.json"):
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source, **options)
            tokenizer.decode(tokenizer("a b").input_ids)  # some settings are first looked at here
    except (OSError, FileFormatError) as error:
        if isinstance(error, FileFormatError) and not _lacks(source, "tokenizer*", "vocab*"):
            raise
        raise _not_found("tokenizer", source, options, error) from error
    tokenizer.name_or_path = named
    return tokenizer


def _source(
    what: str,
    named: str,
    options: dict[str, Any],
    gguf_file: str | None,
    dequantised: Callable[[Path], Path],
) -> str:
    """Folder or name to load from: of a GGUF file, what is kept of it; `options` follow."""
    where = {name: options.get(name) for name in ("revision", "cache_dir")}
    file = str(PurePosixPath(options.get("subfolder") or "", gguf_file or "config.json"))
    is_here = os.path.exists(named) or _is_path(named) or cached_file(named, file, **where)
    if not (is_here or options.get("local_files_only")):
        # Loading itself would try again and again for the better part of a minute first.
        try:
            HfApi(token=options.get("token")).model_info(
                named, revision=where["revision"], timeout=_HUB_TIMEOUT_S
            )
        except Exception as error:  # of the hub's client, its transport, or the name itself
            raise _not_found(what, named, options, error) from error
    gguf = find_gguf(named, gguf_file, options)
    if gguf is None:
        return named
    options |= {"revision": None, "subfolder": ""}
    return str(dequantised(gguf))


def check_model_present(name_or_path: str | Path) -> None:
    """Fail where a path is meant that is not there. Nothing is loaded, and the hub is not asked.

    Raises:
        ModelNotFoundError: it is not there.
    """
    source = os.path.expanduser(str(name_or_path))
    if source.endswith(".gguf"):
        find_gguf(source, None, {})
    elif (source.count("/") > 1 or _is_path(source)) and not os.path.exists(source):
        raise _not_found("model", source, {}, FileNotFoundError())


def _is_path(source: str) -> bool:
    return source.startswith(".") or source.endswith(".gguf") or os.path.isabs(source)


def _base_of_adapter(source: str) -> str:
    """The model that transformers loads for a folder: itself, or what its adapter belongs to."""
    name = "adapter_config.json"
    if not _lacks(source, "config.json") or _lacks(source, name):
        return source
    with format_errors(source, name):
        base = parse_json((Path(source) / name).read_bytes()).get(_BASE)
    if not isinstance(base, str):
        reason = f"{_BASE} should be a folder or a name on the hub, got {base!r}."
        raise bad_model_file(source, name, reason)
    return base


def _lacks(source: str, *patterns: str) -> bool:
    """Whether this is a directory without any such file."""
    path = Path(source)
    return os.path.isdir(path) and not any(any(path.glob(pattern)) for pattern in patterns)


def _not_found(
    what: str, source: str, options: Mapping[str, Any], error: Exception
) -> ModelNotFoundError:
    path, revision = Path(source), options.get("revision")
    is_said = isinstance(error, FileFormatError) or not str(error).strip()  # by what follows
    reason = "" if is_said else f" [{str(error).strip().splitlines()[0]}]"
    if os.path.isdir(path):
        entries = ", ".join(sorted(entry.name for entry in path.iterdir())[:8]) or "nothing"
        step = (
            f"The directory holds {entries}. It needs what save_pretrained() writes: config.json "
            f"and weights of the model, and the files of its tokenizer.{reason}"
        )
    elif _is_path(source):
        step = "There is no such directory. Check the path."
    else:
        step = (
            f"There is no directory {source!r} here. If it is the name of a model on "
            "the Hugging Face hub: check the spelling; fetch it once with a network (`hf download "
            f"{source}`); unset HF_HUB_OFFLINE if it is set; for a gated model, log in with `hf "
            f"auth login`; where it holds GGUF files, name one with gguf_file.{reason}"
        )
    at = f" (revision {revision!r})" if revision else ""
    return ModelNotFoundError(f"Cannot load the {what} of {source!r}{at}. {step}")


def _check_dtype(dtype: str | torch.dtype) -> None:
    if isinstance(dtype, torch.dtype) or dtype == "auto":
        return
    if not isinstance(getattr(torch, str(dtype), None), torch.dtype):
        raise UnsupportedGenerationError(
            "dtype must be 'auto', 'float32', 'bfloat16', 'float16' or a torch.dtype, got "
            f"{dtype!r}."
        )


def _quantization(bits: str, dtype: str | torch.dtype) -> BitsAndBytesConfig:
    """The configuration for weights of ``4bit`` or ``8bit``; the rest computes in `dtype`."""
    if bits not in ("4bit", "8bit"):
        raise UnsupportedGenerationError(
            "quantization_config (--quantize) must be '4bit', '8bit' or a configuration object "
            f"of transformers, got {bits!r}."
        )
    missing = [name for name in ("bitsandbytes", "accelerate") if find_spec(name) is None]
    if missing or not torch.cuda.is_available():
        raise UnsupportedGenerationError(
            f"quantization_config={bits!r} (--quantize) needs a CUDA GPU, of which PyTorch "
            f"{torch.__version__} sees {torch.cuda.device_count()}, and bitsandbytes and "
            "accelerate: pip install bitsandbytes accelerate. Leave it out, or choose a smaller "
            "model."
        )
    if bits == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    compute = torch.bfloat16 if dtype == "auto" else dtype
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=compute)


def _device(device: str | torch.device | None) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise UnsupportedGenerationError(
            f"There is no device {device!r}: use 'cpu', 'cuda', 'cuda:1', 'mps'."
        ) from error
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise UnsupportedGenerationError(
            f"device={str(device)!r} was asked for, and PyTorch {torch.__version__} sees no "
            "GPU. Pass device='cpu' (--device cpu), or install PyTorch for CUDA."
        )
    return chosen
