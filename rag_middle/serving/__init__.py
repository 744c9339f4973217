"""An OpenAI-compatible server over `RagMiddleModel`; needs the extra ``serve``.

::

    model = RagMiddleModel.from_pretrained("Qwen/Qwen2.5-1.5B-Instruct")
    settings = ServerSettings(model_name="qwen", methods=named_methods(model, ["pine", "none"]))
    uvicorn.run(create_app(model, settings))

A request goes from `app` through `schema` (its fields) and `jobs` (what it asks the model for),
which calls `prompts` (its documents), to `batching` (several at a time), and back by `responses`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rag_middle.lazy import names_on_first_use

if TYPE_CHECKING:
    from rag_middle.serving.app import create_app
    from rag_middle.serving.settings import ServerSettings, named_methods

__all__ = ["ServerSettings", "create_app", "named_methods"]

# Without FastAPI and PyTorch, which a command that shows its help does not need.
__getattr__, __dir__ = names_on_first_use(__name__)
