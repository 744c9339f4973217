"""Where vLLM's model runner says what a step holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from rag_middle.errors import MethodConfigError
from rag_middle_vllm.documents.attention import attend_to_documents
from rag_middle_vllm.documents.batch import DocumentBatch
from rag_middle_vllm.documents.methods import ServedMethod
from rag_middle_vllm.hooks import hook
from rag_middle_vllm.layers import LoadedModel

#: The attribute of a model that reads documents.
_BATCH = "rag_middle_documents"


def serve_documents(
    model: nn.Module, methods: Mapping[str, ServedMethod], vllm_config: Any, model_config: Any
) -> None:
    """Make a loaded model read the documents of requests that name a method.

    Args:
        model: as a loader of vLLM returns it, changed in place.
        methods: that requests may name.
        vllm_config: the engine's config.
        model_config: of this model.

    Raises:
        MethodConfigError: the engine runs in a way that the methods do not go with.
        UnsupportedArchitectureError: the model has a layer that cannot read documents.
        PatchIneffectiveError: a rotary module does not do what it says.
    """
    check_engine(vllm_config)
    loaded = LoadedModel(model, vllm_config, model_config)
    if not all(layer.attentions for layer in loaded.layers.values()):
        raise loaded.refused("it has layers without softmax attention, which read in order.")
    batch = DocumentBatch(methods)
    attend_to_documents(loaded, methods, batch)
    setattr(model, _BATCH, batch)
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    hook_runner(GPUModelRunner)


def check_engine(vllm_config: Any) -> None:
    """Refuse engines that would read documents in pieces, or without the layers' Python code.

    Raises:
        MethodConfigError: with the options to change.
    """
    scheduler, parallel = vllm_config.scheduler_config, vllm_config.parallel_config
    compilation, cache = vllm_config.compilation_config, vllm_config.cache_config
    fused, mixed = compilation.pass_config.fuse_attn_quant, compilation.cudagraph_mode.mixed_mode()
    reasons = {
        "model runner 2 (set VLLM_USE_V2_MODEL_RUNNER=0)": vllm_config.use_v2_model_runner,
        "chunked prefill (enable_chunked_prefill)": scheduler.enable_chunked_prefill,
        "long_prefill_token_threshold": scheduler.long_prefill_token_threshold,
        "a KV connector (kv_transfer_config)": vllm_config.kv_transfer_config,
        "speculative decoding": vllm_config.speculative_config,
        "a cache of 8 bits (kv_cache_dtype)": str(cache.cache_dtype).startswith("fp8"),
        "full CUDA graphs of prefills (cudagraph_mode)": mixed.name == "FULL",
        "fused quantisation of attention (fuse_attn_quant)": fused,
        "micro-batches (enable_dbo, ubatch_size)": parallel.use_ubatching,
        "context parallelism": max(
            parallel.prefill_context_parallel_size, parallel.decode_context_parallel_size
        ) > 1,
    }  # fmt: skip
    refused = [reason for reason, is_set in reasons.items() if is_set]
    if refused:
        raise MethodConfigError(
            "rag_middle: documents are not served together with "
            f"{', '.join(refused)}. Turn it off, or serve documents with `rag-middle serve`."
        )


def hook_runner(runner: type[Any]) -> None:
    """Let the model runner say what each step holds."""

    def telling(model_forward: Callable[..., Any]) -> Callable[..., Any]:
        def forward(
            self: Any, input_ids: Any = None, positions: Any = None, *args: Any, **kw: Any
        ) -> Any:
            batch: DocumentBatch | None = getattr(self.model, _BATCH, None)
            if batch is None:
                return model_forward(self, input_ids, positions, *args, **kw)
            step = self.input_batch
            params = [self.requests[name].sampling_params for name in step.req_ids]
            scheduled = self.num_scheduled_tokens.np
            with batch.step(params, step.num_computed_tokens_cpu, scheduled, positions):
                return model_forward(self, input_ids, positions, *args, **kw)

        return forward

    hook(runner, _model_forward=telling)
