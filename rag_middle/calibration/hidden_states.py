"""Mean hidden states by layer and position, over many texts."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rag_middle.attention import in_eval_mode, model_traits
from rag_middle.attention.patch import require_uncompiled
from rag_middle.calibration.examples import Example
from rag_middle.errors import CalibrationConfigError
from rag_middle.generation import RagMiddleModel

__all__ = ["mean_hidden_states", "random_texts"]


def random_texts(
    model: RagMiddleModel, examples: Sequence[Example], *, count: int, tokens: int, seed: int
) -> Tensor:
    """Texts of documents in random order, one after the other: ids `[count, tokens]`.

    What a text says averages out over many; what is left is the place of a token.

    Args:
        model: whose tokenizer counts.
        examples: whose documents are taken.
        count: of texts.
        tokens: of each text.
        seed: of the order.

    Raises:
        CalibrationConfigError: no document has any text.
    """
    texts = {doc.render(): None for each in examples for doc in each.prompt.documents}
    pieces = [ids for ids in (model.token_ids(text + "\n\n") for text in texts) if ids]
    if not pieces:
        raise CalibrationConfigError("The documents are empty: there is no text to look at.")
    rng = random.Random(f"texts {seed}")
    rows = []
    for _ in range(count):
        row: list[int] = []
        while len(row) < tokens:
            row.extend(rng.choice(pieces))
        rows.append(row[:tokens])
    return torch.tensor(rows)


@torch.no_grad()
def mean_hidden_states(model: RagMiddleModel, texts: Tensor, *, max_batch_size: int = 8) -> Tensor:
    """What comes out of every decoder layer, averaged over texts: float32 `[layers, n, hidden]`.

    Each layer's states are added up as they pass, so that memory holds one layer of one batch
    besides the sums. Sums are float64.

    Args:
        model: left as it is found; its method is not used.
        texts: ids `[texts, n]`.
        max_batch_size: texts per forward pass.

    Raises:
        CalibrationConfigError: the decoder's layers cannot be told.
    """
    inner = model.model
    require_uncompiled(inner, model_traits(inner))
    layers = _decoder_layers(inner)
    sums: list[Tensor | None] = [None] * len(layers)

    def keep(index: int, output: Any) -> None:
        states: Tensor = output[0] if isinstance(output, tuple) else output
        added = states.double().sum(dim=0).cpu()
        before = sums[index]
        sums[index] = added if before is None else before + added

    with in_eval_mode(inner), _watched(layers, keep):
        for batch in texts.split(max_batch_size):
            inner(input_ids=batch.to(model.device), use_cache=False)
    return torch.stack([total.div(len(texts)).float() for total in sums if total is not None])


@contextmanager
def _watched(layers: Sequence[nn.Module], keep: Any) -> Iterator[None]:
    with ExitStack() as stack:
        for index, layer in enumerate(layers):

            def hook(_module: nn.Module, _input: Any, output: Any, at: int = index) -> None:
                keep(at, output)

            stack.callback(layer.register_forward_hook(hook).remove)
        yield


def _decoder_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The list of as many equal modules as the model has decoder layers."""
    count = model_traits(model).num_layers
    found = [
        list(module)
        for module in model.modules()
        if isinstance(module, nn.ModuleList)
        and len(module) == count
        and len({type(each) for each in module}) == 1
    ]
    if not found:
        raise CalibrationConfigError(
            f"The {count} decoder layers of this {model.config.model_type} model cannot be told "
            "from its other modules: its positional channels cannot be searched for."
        )
    return found[0]
