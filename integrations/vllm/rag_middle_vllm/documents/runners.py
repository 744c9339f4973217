"""Where vLLM's model runners say what a step holds: the hooks of both versions.

Version 1 is proven on a CPU. Version 2, the default where Triton runs, asks the model for a class
of its own to prepare inputs; that hook is tested against vLLM's classes and was **not run** in an
engine, which needs a GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from rag_middle.errors import MethodConfigError
from rag_middle_vllm.documents.attention import attend_to_documents
from rag_middle_vllm.documents.batch import DocumentBatch
from rag_middle_vllm.documents.methods import DocumentMethod
from rag_middle_vllm.layers import LoadedModel

#: The attribute of a model that reads documents.
_BATCH = "rag_middle_documents"


def serve_documents(
    model: nn.Module, methods: Mapping[str, DocumentMethod], vllm_config: Any, model_config: Any
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
    if vllm_config.use_v2_model_runner:
        from vllm.v1.worker.gpu.model_states import resolve_model_state_cls
        from vllm.v1.worker.gpu.model_states.default import DefaultModelState

        if resolve_model_state_cls(vllm_config, model) is not DefaultModelState:
            raise loaded.refused("vLLM prepares its inputs in a way of its own.")
        state = document_model_state(batch)
        vars(model)["get_model_state_cls"] = lambda: state
    else:
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
    """Let version 1's model runner say what each step holds; more than once does no more."""
    if getattr(runner._model_forward, "of_rag_middle", False):
        return
    model_forward: Callable[..., Any] = runner._model_forward

    @functools.wraps(model_forward)
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

    forward.of_rag_middle = True  # type: ignore[attr-defined]
    runner._model_forward = forward


def document_model_state(batch: DocumentBatch) -> type[Any]:
    """The class by which version 2's model runner prepares a model's inputs.

    Args:
        batch: that the model's layers read.
    """
    import torch
    from vllm.v1.worker.gpu.model_states.default import DefaultModelState

    class DocumentModelState(DefaultModelState):  # type: ignore[misc]
        """Positions of a buffer of its own, as CUDA graphs need, and the rows of each step."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._params: dict[str, Any] = {}
            self._positions = torch.zeros(
                self.max_num_tokens, dtype=torch.int64, device=self.device
            )

        def add_request(self, req_index: int, new_req_data: Any) -> None:
            super().add_request(req_index, new_req_data)
            self._params[new_req_data.req_id] = new_req_data.sampling_params

        def remove_request(self, req_id: str) -> None:
            super().remove_request(req_id)
            self._params.pop(req_id, None)

        def prepare_inputs(self, input_batch: Any, req_states: Any) -> dict[str, Any]:
            inputs = super().prepare_inputs(input_batch, req_states)
            positions = self._positions[: input_batch.num_tokens_after_padding]
            positions.copy_(input_batch.positions[: len(positions)])
            batch.prepare(
                [self._params.get(name) for name in input_batch.req_ids],
                input_batch.num_computed_tokens_np,
                input_batch.num_scheduled_tokens,
                positions,
            )
            return {**inputs, "positions": positions}

        def prepare_dummy_inputs(self, num_reqs: int, num_tokens: int) -> dict[str, Any]:
            batch.clear()
            inputs = super().prepare_dummy_inputs(num_reqs, num_tokens)
            return {**inputs, "positions": self._positions[:num_tokens]}

    return DocumentModelState
