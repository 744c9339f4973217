"""A model behind an OpenAI-compatible address, used like one whose weights are here.

::

    model = EndpointModel("http://localhost:8000/v1", "Qwen/Qwen2.5-7B-Instruct")
    print(diagnose(model, task_for_file("questions.jsonl")).shape.name)

Evaluation and answering take it wherever they need answers only.
"""

from rag_middle.endpoint.model import EndpointModel
from rag_middle.notices import EndpointWarning

__all__ = ["EndpointModel", "EndpointWarning"]
