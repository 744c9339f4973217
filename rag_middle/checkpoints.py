"""Files of models: where they lie in the local cache of the hub, and what changes with them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

#: One of them is in the local cache of the hub where a model or a tokenizer is.
_HUB_FILES = ("config.json", "tokenizer_config.json", "tokenizer.json")


def cached_file(
    name: str, file: str, *, revision: str | None = None, cache_dir: str | None = None
) -> Path | None:
    """A file of a model in the local cache of the hub; None where it is not there.

    Args:
        name: of the model on the hub; no file is there under what is no such name.
        file: its path in the repository.
        revision: commit, tag or branch.
        cache_dir: of the cache; by default the hub's own.
    """
    from huggingface_hub import try_to_load_from_cache  # not quick, and few need it
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(name, file, cache_dir=cache_dir, revision=revision)
    except HFValidationError:
        return None  # loading says what is wrong with the name
    return Path(cached) if isinstance(cached, str) else None


def checkpoint_states(loading: Mapping[str, Any]) -> list[str | None]:
    """What changes when the files of a model, or of its tokenizer, change; one for each of the two.

    Of a folder or file, that is the time of the newest change; of a name on the hub, the commit in
    the local cache; None of what is not here, and of a tokenizer that is an object.

    Args:
        loading: arguments of `RagMiddleModel.from_pretrained`.
    """
    name, tokenizer = loading["name_or_path"], loading.get("tokenizer")
    stated = {option: loading.get(option) for option in ("revision", "gguf_file")}
    of_model, of_tokenizer = (
        loading.get(options) or {} for options in ("model_options", "tokenizer_options")
    )
    states = [_checkpoint_state(name, {**stated, **of_model})]
    if tokenizer is None:
        tokenizer, of_tokenizer = name, {**stated, **of_tokenizer}
    is_named = isinstance(tokenizer, str | Path)
    return [*states, _checkpoint_state(tokenizer, of_tokenizer) if is_named else None]


def _checkpoint_state(name: str | Path, options: Mapping[str, Any]) -> str | None:
    subfolder = options.get("subfolder") or ""
    path = Path(os.path.expanduser(name), subfolder)
    if os.path.exists(path):  # unlike Path.exists, also of names that no system takes
        return str(max(file.stat().st_mtime_ns for file in (path, *path.glob("*"))))
    stated = {option: options.get(option) for option in ("revision", "cache_dir")}
    for file in (*filter(None, [options.get("gguf_file")]), *_HUB_FILES):
        inside = PurePosixPath(subfolder, file)
        cached = cached_file(str(name), str(inside), **stated)
        if cached is not None:  # .../snapshots/COMMIT/FILE
            return cached.parents[len(inside.parts) - 1].name
    return None
