"""Run the package and a naive twin on the same tiny model, prompts and generated tokens."""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch

from rag_middle.attention import applied, model_traits
from rag_middle.layout import PromptLayout
from rag_middle.methods import Method
from rag_middle.methods.moice.kernels import ExpertGate
from rag_middle.methods.moice.routers import ExpertRouters
from tests.contract.cases import Prompt
from tests.contract.running import distance, generated
from tests.reference.llama import NaiveLlama

#: Grouped queries and biases; query and key norms.
MODELS = ("llama", "qwen3")
WAYS = [(model, implementation) for model in MODELS for implementation in ("sdpa", "eager")]

#: A batch: the second row is padded on the left, the third has one long document.
PROMPTS = (
    Prompt.random(PromptLayout(26, ((4, 9), (9, 16), (16, 22))), seed=11),
    Prompt.random(PromptLayout(17, ((1, 6), (6, 8), (8, 15))), seed=12),
    Prompt.random(PromptLayout(21, ((3, 4), (4, 15), (15, 18))), seed=13),
)
STEPS = 3
TOLERANCE = 1e-4  # float32 sums in another order

#: Rotary bases of MoICE's experts.
FACTORS = (1.0, 0.05, 20.0)

N = TypeVar("N", bound=NaiveLlama)


def naive(kind: type[N], model: Any, prompt: Prompt, **settings: Any) -> N:
    """The twin of `model` for one prompt."""
    config = model.config
    return kind(
        weights=model.state_dict(),
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_size=config.head_dim,
        theta=config.rope_parameters["rope_theta"],
        eps=config.rms_norm_eps,
        prompt_tokens=prompt.layout.length,
        **settings,
    )


def assert_equal_to_naive(
    model: Any,
    method: Method,
    kind: type[NaiveLlama],
    prompts: Sequence[Prompt] = PROMPTS,
    **settings: Any,
) -> None:
    """Logits of prompts alone and of generation in a padded batch equal the twin's.

    Args:
        model: a tiny LLaMA or Qwen 3.
        method: of the package.
        kind: its twin.
        prompts: the batch.
        settings: of the twin; a callable is called with the prompt.
    """
    with applied(model, method, [prompt.tokens for prompt in prompts]):
        tokens, logits = generated(model, prompts, STEPS)
    moved = 0.0
    for row, prompt in enumerate(prompts):
        given = {k: v(prompt) if callable(v) else v for k, v in settings.items()}
        twin = naive(kind, model, prompt, **given)
        ids = torch.cat((prompt.ids[0], tokens[row, :-1]))
        expected = twin.logits(ids)
        assert distance(logits[row], expected[-STEPS:]) < TOLERANCE
        with applied(model, method, [prompt.tokens]):
            of_prompt = model(prompt.ids).logits[0]
        assert distance(of_prompt, expected[: prompt.layout.length]) < TOLERANCE
        plain = model(ids[None]).logits[0]
        moved = max(moved, distance(expected[-STEPS:], plain[-STEPS:]))
    assert moved > 100 * TOLERANCE


def routers_for(model: Any, factors: tuple[float, ...] = FACTORS) -> ExpertRouters:
    """Routers that are sure of themselves."""
    generator = torch.Generator().manual_seed(5)
    gates = {
        index: ExpertGate(
            *(
                0.8 * torch.randn(len(factors), width, generator=generator)
                for width in (layer.head_size, len(factors), layer.head_size)
            )
        )
        for index, layer in model_traits(model).layers.items()
        if layer.uses_rope
    }
    return ExpertRouters(base_factors=factors, gates=gates, provenance={})
