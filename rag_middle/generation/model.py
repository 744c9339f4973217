"""RagMiddleModel: a model, its tokenizer and a method, behind a few calls.

How it is loaded is here; what it can be asked for, in the classes that it is made of.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from rag_middle.generation.document_cache import DocumentCache
from rag_middle.generation.likelihood import LikelihoodScoring
from rag_middle.generation.loading import check_loading, load_model, load_tokenizer
from rag_middle.generation.options import check_context_window
from rag_middle.generation.preparing import MethodLike
from rag_middle.generation.text_generation import TextGeneration
from rag_middle.methods import resolve_method

__all__ = ["RagMiddleModel"]


class RagMiddleModel(TextGeneration, LikelihoodScoring):
    """A causal language model that reads marked documents under a method.

    Prompts are strings with document markers, `ContextPrompt`, chat messages or `TokenizedPrompt`.
    Every call may choose another method; nothing of a request stays on the model. Any number of
    threads may call: requests on one model take turns.

    Args:
        model: a loaded Hugging Face causal language model. It is used where it is and as it is.
        tokenizer: its tokenizer; never changed.
        method: a name, a preset (``"positional_hidden_states:llama-2-7b-chat"``), a composition
            (``"lpes+siw"``, a list) or a method object.
        method_options: the method's parameters, where `method` is a name.
        context_window: tokens that prompt and answer may have together, instead of what the
            model's config says, RoPE scaling included (a method that rescales positions may reach
            further).
        self_check: run the model on a few random tokens with every method that is new to it, and
            raise if the method changes nothing.
        document_cache: documents that were read before, for methods under which they do not see
            each other (`parallel_context_windows`, `ape`): only what is new goes through the
            model. Prompts then go one at a time.

    Raises:
        UnknownNameError: no such method.
        MethodConfigError: parameters the method refuses, or that do not fit the model.
        UnsupportedArchitectureError: the model cannot take the method; says what to use instead.
        PatchIneffectiveError: the method leaves the model's logits as they are.
    """

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        *,
        method: MethodLike = "none",
        method_options: Mapping[str, Any] | None = None,
        dtype: str | torch.dtype = "auto",
        device: str | torch.device | None = None,
        device_map: str | Mapping[str, Any] | None = None,
        quantization_config: Any | None = None,
        attn_implementation: str | None = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
        tokenizer: PreTrainedTokenizerBase | str | Path | None = None,
        context_window: int | None = None,
        self_check: bool = True,
        document_cache: DocumentCache | None = None,
        model_options: Mapping[str, Any] | None = None,
        tokenizer_options: Mapping[str, Any] | None = None,
    ) -> RagMiddleModel:
        """Load a model from a directory, the local cache or the Hugging Face hub.

        Args:
            name_or_path: a directory, or a name on the hub.
            method: as for the class, like `method_options`, `context_window` and `self_check`.
            method_options: see there.
            dtype: ``"auto"`` for the checkpoint's own, or ``"float32"``, ``"bfloat16"``, ...
            device: where the whole model goes; by default a GPU if there is one, else the CPU.
            device_map: how to spread it instead (``"auto"``); needs the accelerate package.
            quantization_config: e.g. a transformers ``BitsAndBytesConfig``.
            attn_implementation: ``"sdpa"``, ``"eager"``, ``"flash_attention_2"``, ...; where a
                flash attention is not installed, sdpa runs and a warning says so.
            revision: branch, tag or commit on the hub, for model and tokenizer.
            trust_remote_code: run code that comes with the model.
            tokenizer: a tokenizer, or where to load it from; by default `name_or_path`.
            context_window: see the class.
            self_check: see the class.
            document_cache: see the class.
            model_options: more arguments for ``AutoModelForCausalLM.from_pretrained``.
            tokenizer_options: more arguments for ``AutoTokenizer.from_pretrained``.

        Raises:
            ModelNotFoundError: neither here nor to be fetched.
            UnsupportedGenerationError: arguments that contradict each other, or a device that is
                not there.
        """
        chosen = resolve_method(method, method_options)  # a misspelt name costs no loading
        check_context_window(context_window)
        check_loading(
            dtype=dtype,
            device=device,
            device_map=device_map,
            attn_implementation=attn_implementation,
        )
        if not isinstance(tokenizer, PreTrainedTokenizerBase):
            tokenizer = load_tokenizer(
                name_or_path if tokenizer is None else tokenizer,
                revision=revision if tokenizer is None else None,
                trust_remote_code=trust_remote_code,
                options=tokenizer_options or {},
            )
        model = load_model(
            name_or_path,
            dtype=dtype,
            device=device,
            device_map=device_map,
            quantization_config=quantization_config,
            attn_implementation=attn_implementation,
            revision=revision,
            trust_remote_code=trust_remote_code,
            options=model_options or {},
        )
        return cls(
            model,
            tokenizer,
            method=chosen,
            context_window=context_window,
            self_check=self_check,
            document_cache=document_cache,
        )
