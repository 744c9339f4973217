"""Gradients under a method are those of its logits, or refused."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rag_middle.attention import applied, assume_traits, model_traits
from rag_middle.errors import UnsupportedGenerationError
from rag_middle.methods import LPES, AttentionBuckets, Method, MoICE, MsPoE, PositionInterpolation
from tests.contract.cases import ACTIVE, LONG, SHORT
from tests.contract.running import left_padded
from tests.families import FAMILIES
from tests.tiny_models import HIDDEN

pytestmark = pytest.mark.thorough

WITH_GRADIENTS = (AttentionBuckets, LPES, MoICE, MsPoE, PositionInterpolation)
STEP = 3e-4  # norms are computed in float32


def _sum(model: Any, method: Method, embeddings: Tensor, mask: Tensor) -> Tensor:
    """A number that depends on every embedding."""
    with applied(model, method, [LONG.tokens, SHORT.tokens]):
        logits: Tensor = model(inputs_embeds=embeddings, attention_mask=mask).logits
    return logits[:, -1].logsumexp(-1).sum()


@pytest.mark.parametrize("name", ACTIVE)
@pytest.mark.one_in(3)
def test_gradients_are_right_or_refused(name: str) -> None:
    model, method = FAMILIES["llama"].build("sdpa").double(), ACTIVE[name]
    ids, mask = left_padded([LONG, SHORT])
    embeddings: Tensor = model.get_input_embeddings()(ids)
    embeddings = embeddings.detach().requires_grad_(True)
    value = _sum(model, method, embeddings, mask)
    if not isinstance(method, WITH_GRADIENTS):
        with pytest.raises(UnsupportedGenerationError, match="No gradients"):
            value.backward()
        return
    value.backward()
    generator = torch.Generator().manual_seed(1)
    direction = torch.randn(embeddings.shape, generator=generator).double() * mask[..., None]
    assert embeddings.grad is not None
    with torch.no_grad():
        ends = [_sum(model, method, embeddings + s * STEP * direction, mask) for s in (1, -1)]
    slope = (ends[0] - ends[1]) / (2 * STEP)
    assert (embeddings.grad * direction).sum() == pytest.approx(slope.item(), rel=0.01, abs=0.01)


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing_enable")  # its newer name is too new
@pytest.mark.parametrize("name", ["dysco", "cacheblend", "pine"])
def test_gradients_are_refused_under_checkpoints_too(name: str) -> None:
    model, method = FAMILIES["llama"].build("sdpa"), ACTIVE[name]
    model.requires_grad_(True).train().gradient_checkpointing_enable()

    def learn() -> None:
        logits: Tensor = model(input_ids=LONG.ids, use_cache=False).logits
        logits[:, -1].logsumexp(-1).sum().backward()

    with (
        applied(model, method, [LONG.tokens]),
        pytest.raises(UnsupportedGenerationError, match="No gradients"),
    ):
        learn()


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing_enable")
@pytest.mark.parametrize("name", ["lpes", "moice"])
def test_checkpoints_are_refused_where_backward_passes_have_threads_of_their_own(name: str) -> None:
    model: Any = FAMILIES["llama"].build("sdpa")
    traits = model_traits(model)
    assume_traits(model.to("meta"), traits)  # any device but the CPU
    model.requires_grad_(True).train().gradient_checkpointing_enable()

    embeds = torch.zeros(1, len(LONG.tokens), HIDDEN, device="meta")

    def run() -> None:
        with applied(model, ACTIVE[name], [LONG.tokens]):
            model(inputs_embeds=embeds, use_cache=False)

    with pytest.raises(UnsupportedGenerationError, match="Gradient checkpointing"):
        run()
    for fine in (torch.autograd.set_multithreading_enabled(False), torch.no_grad()):
        with fine, pytest.raises(RuntimeError, match="meta tensor"):  # transformers looks at some
            run()
