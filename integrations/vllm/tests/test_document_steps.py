"""A step with documents: whose they are, where their tokens stand, and what layers make of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from test_layers import HEADS, KV_HEADS, SIZE, decoder, layer, shared_rotary
from torch import nn
from vllm import SamplingParams
from vllm.config import VllmConfig

from rag_middle.errors import UnsupportedArchitectureError
from rag_middle_vllm.documents.admission import BOUNDS, METHOD
from rag_middle_vllm.documents.attention import attend_to_documents
from rag_middle_vllm.documents.batch import DocumentBatch, PartlyReadError
from rag_middle_vllm.documents.methods import document_methods
from rag_middle_vllm.documents.runners import hook_runner
from rag_middle_vllm.layers import LoadedModel

METHODS = {"rotor": {}, "no_inter_document_attention": {}, "parallel_context_windows": {}}
LAYERS = 2


def params(method: str | None = None, bounds: tuple[int, ...] = (2, 5, 9)) -> SamplingParams:
    extra = None if method is None else {METHOD: method, BOUNDS: list(bounds)}
    return SamplingParams(extra_args=extra)


@pytest.fixture
def batch() -> DocumentBatch:
    return DocumentBatch(document_methods(METHODS))


def model(rotary: bool = True, norm: bool = False, **options: Any) -> nn.Module:
    layers = [layer(index, shared_rotary(), **options) for index in range(LAYERS)]
    for each in layers:
        if not rotary:
            each.self_attn.rotary_emb = None
        if norm:
            each.self_attn.query_layernorm = nn.LayerNorm(SIZE)
    return decoder(layers)


def loaded(config: VllmConfig, module: nn.Module) -> LoadedModel:
    facts = SimpleNamespace(
        hf_text_config=SimpleNamespace(model_type="unknown"),
        max_model_len=64,
        use_mla=False,
        get_total_num_hidden_layers=lambda: LAYERS,
        get_layers_start_end_indices=lambda _: (0, LAYERS),
        using_transformers_backend=lambda: False,
    )
    return LoadedModel(module, config, facts)


def test_a_step_of_several_requests(batch: DocumentBatch) -> None:
    requests = [params(), params("parallel_context_windows"), params("rotor"), params()]
    # Generated tokens, a whole prompt, the end of a cached one, and a slot that is not used.
    computed, scheduled = np.array([30, 0, 9, 7]), np.array([1, 11, 2, 0])
    positions = torch.tensor([30, *range(11), 9, 10, 99])
    with batch.step(requests, computed, scheduled, positions):
        (row,) = batch.rows
        assert row.start == 1
        assert row.spans.layout.documents == ((2, 5), (5, 9))
        # Both documents begin at 2; later tokens follow the longer one, which ends at 6.
        assert positions.tolist() == [30, 0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 7, 9, 10, 99]
    assert batch.rows == ()


def test_later_tokens_go_on_where_the_documents_end(batch: DocumentBatch) -> None:
    positions = torch.tensor([11, 12])
    requests = [params("parallel_context_windows"), params("no_inter_document_attention")]
    with batch.step(requests, [11, 12], [1, 1], positions):
        assert batch.rows == ()
    assert positions.tolist() == [8, 12]


@pytest.mark.parametrize(("computed", "scheduled"), [(0, 8), (4, 20), (8, 1)])
def test_documents_in_pieces_are_refused(
    batch: DocumentBatch, computed: int, scheduled: int
) -> None:
    positions = torch.arange(computed, computed + scheduled)
    reading = batch.step([params("rotor")], [computed], [scheduled], positions)
    with pytest.raises(PartlyReadError, match="documents end at 9"), reading:
        pass


def test_only_document_rows_are_written_anew(batch: DocumentBatch, config: VllmConfig) -> None:
    module = model()
    attention = module.model.layers[0].self_attn.attn
    attention.impl.forward = lambda *args: args[6].fill_(7.0)
    attend_to_documents(loaded(config, module), document_methods(METHODS), batch)
    torch.manual_seed(0)
    query, key, value = (torch.randn(14, heads, SIZE) for heads in (HEADS, KV_HEADS, KV_HEADS))
    output = torch.empty(14, HEADS, SIZE)
    requests = [params(), params("no_inter_document_attention")]
    with batch.step(requests, [5, 0], [1, 13], torch.arange(14)):
        attention.impl.forward(attention, query, key, value, None, object(), output)
    assert (output[:1] == 7).all()
    assert (output[10:] == 7).all()
    # Query 8 is in the second document: it sees the prefix and its own document.
    seen = [1, 2, 6, 7, 8]
    for head in range(HEADS):
        scores = key[seen, head // 2] @ query[8, head]
        expected = scores.softmax(-1) @ value[seen, head // 2]
        torch.testing.assert_close(output[8, head], expected)


@pytest.mark.parametrize(
    ("options", "enabled", "reason"),
    [
        ({"per_layer_sliding_window": 8}, ["rotor"], "sliding window, which rotor"),
        ({"per_layer_sliding_window": 8}, ["parallel_context_windows"], "sliding window"),
        ({"per_layer_sliding_window": 8}, ["no_inter_document_attention"], None),
        ({"logits_soft_cap": 30.0}, ["rotor"], "caps its scores"),
        ({"logits_soft_cap": 30.0}, ["parallel_context_windows"], None),
        ({"alibi_slopes": [0.1] * HEADS}, ["no_inter_document_attention"], "ALiBi"),
        ({"norm": True}, ["rotor"], "query_layernorm"),
        ({"norm": True}, ["parallel_context_windows"], None),
        ({"rotary": False}, ["rotor"], None),
    ],
)
def test_layers_that_cannot_read_documents_are_refused(
    batch: DocumentBatch,
    config: VllmConfig,
    options: dict[str, Any],
    enabled: list[str],
    reason: str | None,
) -> None:
    methods = document_methods({name: {} for name in enabled})
    decoder = loaded(config, model(**options))
    if reason is None:
        attend_to_documents(decoder, methods, batch)
        return
    with pytest.raises(UnsupportedArchitectureError, match=reason):
        attend_to_documents(decoder, methods, batch)


def test_the_runner_says_what_a_step_holds(batch: DocumentBatch) -> None:
    rows_in_model = []

    class Runner:
        def __init__(self, model: Any) -> None:
            self.model = model
            self.requests = {"a": SimpleNamespace(sampling_params=params("rotor"))}
            self.input_batch = SimpleNamespace(
                req_ids=["a"], num_computed_tokens_cpu=np.array([0, 3])
            )
            self.num_scheduled_tokens = SimpleNamespace(np=np.array([11, 0]))

        def _model_forward(self, input_ids: Any, positions: Any, **kwargs: Any) -> str:
            rows_in_model.append(len(batch.rows))
            return "states"

    hook_runner(Runner)
    hook_runner(Runner)
    for module in (SimpleNamespace(rag_middle_documents=batch), SimpleNamespace()):
        runner = Runner(module)
        assert runner._model_forward(input_ids=None, positions=torch.arange(11)) == "states"
    assert rows_in_model == [1, 0]
    assert batch.rows == ()
