"""Methods that look at the documents of each prompt, in vLLM: experimental, off unless enabled.

::

    llm = LLM("...", hf_overrides={"rag_middle": {"documents": {"rotor": {}}}})
    prompt, params = document_request(llm.get_tokenizer(), marked_text, RoToR())
    llm.generate(prompt, params)
"""

from __future__ import annotations

from rag_middle_vllm.documents.prompts import document_request

__all__ = ["document_request"]
