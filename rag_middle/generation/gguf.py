"""GGUF files: read by transformers once, and kept as safetensors in the user's cache.

transformers dequantises a GGUF file while it loads it, which takes longer than the loading itself.
What it read is saved, whole or not at all, under the file's digest; from there it is loaded like
any other folder, so nothing else in this package knows of GGUF.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import hf_hub_download
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from rag_middle.errors import (
    FileFormatError,
    ModelNotFoundError,
    OutputWriteError,
    UnsupportedGenerationError,
)
from rag_middle.extras import require
from rag_middle.files import file_sha256, reason, user_cache
from rag_middle.model_files import bad_model_file, format_errors

#: A folder with one of these is loaded as it is, whatever GGUF files lie beside them.
_OTHER_WEIGHTS = ("*.safetensors", "*.bin", "adapter_config.json")
#: What `tokenizer.ggml.token_type` calls control tokens, and others that are found in any text.
_ADDED = (3, 4)
#: Version of transformers from which on end tokens and thinking tags of GGUF files are right.
_READS_TOKENIZERS = (5, 18)
#: Options of loading that `hf_hub_download` takes too.
HUB_OPTIONS = frozenset(
    "cache_dir force_download local_files_only revision subfolder token".split()
)


def find_gguf(source: str, gguf_file: str | None, options: Mapping[str, Any]) -> Path | None:
    """The GGUF file that is meant; None where a model of another format is.

    Args:
        source: the file itself, a folder that holds it, or a name on the hub.
        gguf_file: the file's name; a folder with no other weights and one GGUF file needs none.
        options: of transformers' own loading, some of which say where files are.

    Raises:
        ModelNotFoundError: there is no such file, or the folder holds several.
        UnsupportedGenerationError: `gguf_file` beside a file.
    """
    if source.lower().endswith(".gguf") and not os.path.isdir(source):
        if gguf_file is not None:
            raise UnsupportedGenerationError(
                f"gguf_file={gguf_file!r} names a file in a folder or on the hub, and "
                f"{source!r} is a file: leave it out."
            )
        if os.path.isfile(source):
            return Path(source)
        raise _not_found(source, "There is no such file", Path(source).parent)
    if os.path.isdir(source):
        return _in_folder(Path(source, options.get("subfolder") or ""), gguf_file)
    if gguf_file is None:
        return None
    access = {name: options[name] for name in HUB_OPTIONS if name in options}
    try:
        return Path(hf_hub_download(source, gguf_file, **access))
    except (OSError, ValueError) as error:  # of the hub, its transport, or the name
        raise ModelNotFoundError(
            f"Cannot load {source!r}: gguf_file={gguf_file!r} is neither in the local cache "
            "nor to be fetched. Check both names; fetch it once with a network (`hf download "
            f"{source} {gguf_file}`), or name a file that is here. "
            f"[{str(error).strip().splitlines()[0]}]"
        ) from error


def _in_folder(folder: Path, gguf_file: str | None) -> Path | None:
    if gguf_file is not None:
        if (folder / gguf_file).is_file():
            return folder / gguf_file
        raise _not_found(str(folder), f"It holds no {gguf_file!r}", folder)
    files = list(folder.glob("*.gguf"))
    if not files or any(any(folder.glob(pattern)) for pattern in _OTHER_WEIGHTS):
        return None
    if len(files) > 1:
        raise _not_found(str(folder), "It holds several GGUF files", folder)
    return files[0]


def _not_found(source: str, problem: str, folder: Path) -> ModelNotFoundError:
    names = ", ".join(sorted(path.name for path in folder.glob("*.gguf"))) or "none"
    return ModelNotFoundError(
        f"Cannot load {source!r}. {problem}. GGUF files in {str(folder)!r}: {names}. Name one "
        "with gguf_file."
    )


def dequantised_model(file: Path, dtype: str | torch.dtype) -> Path:
    """The folder in the user's cache with the model of a GGUF file, written if it is not there.

    Its weights are kept in `dtype`; ``"auto"`` for float32.

    Raises:
        MissingExtraError: what reads GGUF is not installed.
        FileFormatError: the file is damaged.
        UnsupportedGenerationError: transformers cannot read this kind.
        OutputWriteError: the cache cannot be written to.
    """
    kept = "float32" if dtype == "auto" else str(dtype).removeprefix("torch.")

    def write(folder: Path) -> None:
        outcome: Any = AutoModelForCausalLM.from_pretrained(
            str(file.parent), gguf_file=file.name, dtype=kept, output_loading_info=True
        )
        model, loaded = outcome
        if missing := sorted(loaded["missing_keys"]):  # transformers drew them at random
            problem = f"it lacks {len(missing)} tensors of its model, such as {missing[0]}."
            raise bad_model_file(str(file), file.name, problem)
        # Else save_pretrained refuses: it takes the model for one that is still quantised.
        model.hf_quantizer, model.is_quantized = None, False
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.save_pretrained(folder)

    return _kept(file, kept, write)


def dequantised_tokenizer(file: Path) -> Path:
    """As `dequantised_model`, for the tokenizer of a GGUF file, its chat template included."""

    def write(folder: Path) -> None:
        if tuple(map(int, transformers.__version__.split(".")[:2])) < _READS_TOKENIZERS:
            raise UnsupportedGenerationError(
                f"transformers {transformers.__version__} misreads tokenizers of GGUF files: pip "
                "install 'transformers>=5.18', or name the tokenizer of the model that the file "
                "was made from with tokenizer."
            )
        AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name).save_pretrained(folder)
        _check_control_tokens(file, AutoTokenizer.from_pretrained(folder))

    return _kept(file, "tokenizer", write)


def _check_control_tokens(file: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a tokenizer that makes ordinary text of the chat template's control tokens.

    Its prompts would not be those that the model knows, and documents could write turns of a chat.
    """
    from transformers.integrations.gguf import (  # type: ignore[attr-defined] # not in 5.17
        read_gguf_metadata,
    )

    metadata, _ = read_gguf_metadata(str(file), ("tokenizer.ggml.tokens",))
    tokens, types = (metadata.get(f"tokenizer.ggml.{key}", ()) for key in ("tokens", "token_type"))
    template = metadata.get("tokenizer.chat_template", "")
    written = {
        index: token
        for index, (token, kind) in enumerate(zip(tokens, types, strict=False))
        if kind in _ADDED and token.strip() and token in template
    }
    added = tokenizer.added_tokens_decoder
    lost = [token for index, token in written.items() if index not in added]
    if lost:
        raise UnsupportedGenerationError(
            f"transformers does not make the control token {lost[0]!r} of the GGUF file "
            f"{str(file)!r}. Name the tokenizer of the model that the file was made from with "
            "tokenizer."
        )


def _kept(file: Path, name: str, write: Callable[[Path], Any]) -> Path:
    """A file's folder `name` in the cache; `write` fills it if it is not there."""
    cache = user_cache("gguf")
    # Moved, it is the same model. About a second for each gigabyte.
    target = cache / file_sha256(file) / name
    if target.is_dir():
        return target
    for package in ("gguf", "accelerate"):
        what = f"{file.name!r} is a GGUF file (gguf_file): reading it"
        require(package, package=package, what=what, extra="gguf")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=target.parent) as folder:
            with format_errors(str(file), file.name):
                write(Path(folder, name))
            Path(folder, name).rename(target)
    except FileFormatError as error:
        cause = error.__cause__
        if isinstance(cause, NotImplementedError) or "not supported" in str(cause):
            raise UnsupportedGenerationError(
                f"transformers cannot read the GGUF file {str(file)!r}: {cause}"
            ) from error
        raise
    except OSError as error:
        if not target.is_dir():  # else another process was faster
            raise OutputWriteError(
                f"The model of {str(file)!r} cannot be kept in {str(cache)!r} ({reason(error)}). "
                "Free space, correct the permissions, or set XDG_CACHE_HOME to another folder."
            ) from error
    return target
