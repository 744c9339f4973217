"""Mean hidden states by layer and position, over many texts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rag_middle.attention import in_eval_mode, model_traits
from rag_middle.attention.frequencies import keep_frequencies
from rag_middle.attention.patch import require_uncompiled
from rag_middle.calibration.examples import Example
from rag_middle.errors import ConfigError
from rag_middle.generation import RagMiddleModel


def random_texts(
    model: RagMiddleModel, examples: Sequence[Example], *, count: int, tokens: int, seed: int
) -> Tensor:
    """Texts of documents in random order: ids `[count, tokens]`.

    Over many texts, content averages out, and what depends on a token's position is left.
    """
    texts = {doc.render(): None for example in examples for doc in example.prompt.documents}
    pieces = [model.token_ids(text + "\n\n") for text in texts]
    rng = random.Random(f"texts {seed}")
    rows = []
    for _ in range(count):
        row: list[int] = []
        while len(row) < tokens:
            row.extend(rng.choice(pieces))
        rows.append(row[:tokens])
    return torch.tensor(rows, device="cpu")


@torch.no_grad()
def mean_hidden_states(model: RagMiddleModel, texts: Tensor, *, max_batch_size: int = 8) -> Tensor:
    """Output of every decoder layer, averaged over texts: float32 `[layers, n, hidden]`.

    Each layer's states are added up during the forward pass, so that memory holds one layer of one
    batch beside the sums. Sums are float64.

    Args:
        model: left as it is found; its method is not used.
        texts: ids `[texts, n]`.
        max_batch_size: texts per forward pass.

    Raises:
        ConfigError: the decoder layers cannot be identified.
    """
    inner = model.model
    require_uncompiled(inner, model_traits(inner))
    layers = _decoder_layers(inner)
    sums: dict[int, Tensor] = {}

    def add_output(index: int, _module: nn.Module, _input: Any, output: Any) -> None:
        states: Tensor = output[0] if isinstance(output, tuple) else output
        batch_sum = states.double().sum(dim=0).cpu()
        sums[index] = sums[index] + batch_sum if index in sums else batch_sum

    with in_eval_mode(inner), keep_frequencies(inner), ExitStack() as hooks:
        for index, layer in enumerate(layers):
            hooks.callback(layer.register_forward_hook(partial(add_output, index)).remove)
        for batch in texts.split(max_batch_size):
            inner(input_ids=batch.to(model.device), use_cache=False)
    return torch.stack([sums[index].div(len(texts)).float() for index in sorted(sums)])


def _decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The first list of modules of one class that is as long as the model has decoder layers."""
    count = model_traits(model).num_layers
    for module in model.modules():
        if (
            isinstance(module, nn.ModuleList)
            and len(module) == count
            and len({type(layer) for layer in module}) == 1
        ):
            return module
    raise ConfigError(
        f"The {count} decoder layers of this {model.config.model_type} model cannot be told "
        "from its other modules: its positional channels cannot be searched for."
    )
