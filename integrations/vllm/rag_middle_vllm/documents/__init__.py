"""Methods that look at the documents of each prompt, in vLLM: experimental, off unless enabled.

`methods`: which of them an engine serves. `prompts`: from marked text or a list of documents to
tokens. `openai`: the same for requests over HTTP. `admission`: what a request may ask for, and its
cache salt. `batch`: what the layers have to know of one step. `attention`: the layers. `runners`:
vLLM's two model runners.

::

    llm = LLM("...", hf_overrides={"rag_middle": {"documents": {"rotor": {}}}})
    prompt, params = document_request(llm.get_tokenizer(), marked_text, RoToR())
    llm.generate(prompt, params)
"""

from __future__ import annotations

from rag_middle_vllm.documents.prompts import document_request

__all__ = ["document_request"]
