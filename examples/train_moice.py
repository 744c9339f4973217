"""Train MoICE's routers (arXiv:2406.19598, section 4) with the model frozen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import index

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from rag_middle.attention import (
    ModelTraits,
    applied,
    in_eval_mode,
    model_lock,
    model_traits,
    vocabulary_size,
)
from rag_middle.attention.rotary import keep_frequencies
from rag_middle.errors import MethodConfigError
from rag_middle.layout import PromptLayout
from rag_middle.methods.moice import MoICE
from rag_middle.methods.moice.kernels import ExpertGate
from rag_middle.methods.moice.routers import ExpertRouters
from rag_middle.methods.requirements import require_rope
from rag_middle.methods.rules import number, whole
from rag_middle.methods.scales import BASE_FACTORS, PUBLISHED_BASES
from rag_middle.tokens import TokenizedPrompt


def new_routers(
    traits: ModelTraits, base_factors: tuple[float, ...], seed: int = 0
) -> ExpertRouters:
    """Untrained routers for every layer with rotary positions, nearly indifferent at first."""
    generator = torch.Generator().manual_seed(seed)
    experts = len(base_factors)

    def draw(width: int) -> Tensor:
        size = (experts, width)
        return 0.02 * torch.randn(size, generator=generator, dtype=torch.float32, device="cpu")

    gates = {
        index: ExpertGate(gate=draw(layer.head_size), down=draw(experts), up=draw(layer.head_size))
        for index, layer in traits.layers.items()
        if layer.uses_rope
    }
    return ExpertRouters(base_factors=base_factors, gates=gates, provenance={"trained_steps": 0})


def train_routers(
    model: PreTrainedModel,
    examples: Sequence[tuple[Sequence[int], Sequence[int]]],
    *,
    base_factors: Sequence[float] = PUBLISHED_BASES,
    top_k: int | None = None,
    steps: int = 200,
    learning_rate: float = 1e-3,
    seed: int = 0,
    start: ExpertRouters | None = None,
    on_step: Callable[[int, float], None] | None = None,
) -> ExpertRouters:
    """Routers that make answers likely, by AdamW on one example per step.

    The loss is the cross entropy of the answer's tokens; the authors' auxiliary loss, which
    balances the experts, is left out. The model's weights get no gradients, and it is left as
    found, whatever is raised.

    Args:
        model: to train for.
        examples: token ids of prompts and of their answers, taken in turn, in a shuffled order.
        base_factors: one per expert, what the model's own RoPE base is multiplied by.
        top_k: experts kept per head and token; ``None`` for all.
        steps: of the optimiser.
        learning_rate: of AdamW, without weight decay.
        seed: of the first weights and the order of examples.
        start: routers to go on with, instead of new ones; they bring their `base_factors`.
        on_step: called with the step, from 0, and its loss.

    Returns:
        The routers, with the number of steps, the first and last losses and the model's name.

    Raises:
        MethodConfigError: no examples, one without answer tokens, token ids that the model does not
            have, or a number out of range.
        UnsupportedArchitectureError: this model cannot take the method.
    """
    whole(1)("train_routers: steps", steps)
    whole(0)("train_routers: seed", seed)
    number(above=0)("train_routers: learning_rate", learning_rate)
    pairs = _token_ids(examples, vocabulary_size(model))
    factors = BASE_FACTORS("train_routers: base_factors", base_factors)
    traits = model_traits(model)
    require_rope("moice", traits)
    routers = start or new_routers(traits, factors, seed)
    live = replace(
        routers,
        gates={
            layer: ExpertGate(*(w.detach().clone().float().requires_grad_() for w in gate))
            for layer, gate in routers.gates.items()
        },
    )
    method = MoICE(routers=live, top_k=top_k)
    parameters = [weight for gate in live.gates.values() for weight in gate]
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=0.0)
    generator = torch.Generator().manual_seed(seed)
    order: list[int] = []
    losses: list[float] = []
    with model_lock(model), keep_frequencies(model), _frozen(model), torch.enable_grad():
        for step in range(steps):
            order = order or torch.randperm(len(pairs), generator=generator, device="cpu").tolist()
            loss = _loss(model, method, *pairs[order.pop()])
            optimizer.zero_grad()
            torch.autograd.backward(loss, inputs=parameters)
            optimizer.step()
            losses.append(float(loss.detach()))
            if on_step is not None:
                on_step(step, losses[-1])
    window = max(1, len(losses) // 10)
    return replace(
        live,
        gates={
            layer: ExpertGate(*(weight.detach() for weight in gate))
            for layer, gate in live.gates.items()
        },
        provenance={
            "model": str(model.config.name_or_path or model.config.model_type),
            "trained_steps": int(routers.provenance.get("trained_steps", 0)) + steps,
            "learning_rate": learning_rate,
            "seed": seed,
            "examples": len(pairs),
            "first_loss": sum(losses[:window]) / window,
            "last_loss": sum(losses[-window:]) / window,
        },
    )


def _token_ids(
    examples: Iterable[tuple[Iterable[int], Iterable[int]]], vocabulary: int
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Prompts and answers as numbers of this vocabulary; tensors and arrays are taken too."""
    try:
        pairs = [(tuple(map(index, p)), tuple(map(index, a))) for p, a in examples]
    except (TypeError, ValueError) as error:
        raise MethodConfigError(
            "train_routers: each example is a pair of lists of token ids, of a prompt and of its "
            f"answer ({error})."
        ) from error
    if not pairs or not all(prompt and answer for prompt, answer in pairs):
        raise MethodConfigError("train_routers needs examples with tokens of prompt and answer.")
    for token in (token for pair in pairs for ids in pair for token in ids):
        if not 0 <= token < vocabulary:
            raise MethodConfigError(
                f"train_routers: this model has token ids from 0 to {vocabulary - 1}, got {token}. "
                "Use its own tokenizer."
            )
    return pairs


def _loss(
    model: PreTrainedModel, method: MoICE, prompt: Sequence[int], answer: Sequence[int]
) -> Tensor:
    device = next(model.parameters()).device
    ids = torch.tensor([[*prompt, *answer]], device=device)
    tokens = TokenizedPrompt(input_ids=(*prompt, *answer), layout=PromptLayout(length=ids.shape[1]))
    with applied(model, method, [tokens]):
        logits: Tensor = model(input_ids=ids, use_cache=False).logits[0]
    return cross_entropy(logits[len(prompt) - 1 : -1].float(), ids[0, len(prompt) :])


@contextmanager
def _frozen(model: PreTrainedModel) -> Iterator[None]:
    """The model in evaluation mode and without gradients of its own, and back again."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    with in_eval_mode(model):
        try:
            for parameter in trainable:
                parameter.requires_grad_(False)
            yield
        finally:
            for parameter in trainable:
                parameter.requires_grad_(True)
