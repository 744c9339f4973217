"""rag-middle in vLLM: layers that rotate positions as a calibrated profile says.

vLLM finds the plugin by itself (entry point ``vllm.general_plugins``). What it shall do comes with
the engine's options::

    LLM(model="...", hf_overrides={"rag_middle": {"profile": "lpes.json"}})
"""

from __future__ import annotations

__all__ = ["register"]


def register() -> None:
    """Get ready for the option ``rag_middle``; vLLM calls this, once or more, in each process.

    Raises:
        UnsupportedVLLMError: this vLLM has other entries, so that the option would be ignored.
    """
    # Not at import: vLLM logs a plugin that fails to import and serves the unmodified model.
    from rag_middle_vllm.plugin import hook_engine

    hook_engine()
