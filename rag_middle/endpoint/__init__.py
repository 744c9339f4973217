"""A model behind an OpenAI-compatible address, used like one whose weights are here.

::

    model = EndpointModel("http://localhost:8000/v1", "Qwen/Qwen2.5-7B-Instruct")
    print(diagnose(model, task_for_file("questions.jsonl"), ["permutation"]).shape.name)

Evaluation and answering take it wherever they need answers only. ``server``: the address, the key
and what `openai` says. ``model``: prompts and methods as requests.
"""

from rag_middle.endpoint.model import EndpointModel
from rag_middle.notices import EndpointWarning
from rag_middle.options import SendDocuments

__all__ = ["EndpointModel", "EndpointWarning", "SendDocuments"]
