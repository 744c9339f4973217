"""Run models the ways the contract compares: at once, by steps, in a batch, in a thread."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests.contract.cases import Prompt

__all__ = [
    "at_once",
    "distance",
    "generated",
    "in_thread",
    "left_padded",
    "prompt_logits",
    "recomputed",
]

STEPS = 3
T = TypeVar("T")


def distance(a: Tensor, b: Tensor) -> float:
    """Largest absolute difference."""
    return (a.float() - b.float()).abs().max().item()


def prompt_logits(model: PreTrainedModel, prompt: Prompt) -> Tensor:
    """Logits ``[n, vocabulary]`` of one pass over the prompt."""
    logits: Tensor = model(input_ids=prompt.ids, use_cache=True).logits[0]
    return logits


def left_padded(prompts: Sequence[Prompt]) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask ``[b, n]``, shorter prompts padded on the left."""
    width = max(prompt.ids.shape[1] for prompt in prompts)
    ids = torch.zeros(len(prompts), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - prompt.ids.shape[1] :] = prompt.ids[0]
        mask[row, width - prompt.ids.shape[1] :] = 1
    return ids, mask


def generated(
    model: Any, prompts: Sequence[Prompt], steps: int = STEPS, **settings: Any
) -> tuple[Tensor, Tensor]:
    """Greedy tokens ``[b, steps]`` and their logits ``[b, steps, vocabulary]``, with a cache."""
    ids, mask = left_padded(prompts)
    out = model.generate(
        ids,
        attention_mask=mask,
        max_new_tokens=steps,
        return_dict_in_generate=True,
        output_logits=True,
        **settings,
    )
    return out.sequences[:, ids.shape[1] :], torch.stack(out.logits, dim=1)


def recomputed(model: PreTrainedModel, prompt: Prompt, tokens: Tensor) -> Tensor:
    """Logits ``[steps, vocabulary]`` that lead to `tokens` ``[steps]``, each from a full pass."""
    rows = []
    for step in range(tokens.shape[0]):
        so_far = torch.cat((prompt.ids, tokens[None, :step]), dim=1)
        rows.append(model(input_ids=so_far, use_cache=False).logits[0, -1])
    return torch.stack(rows)


def at_once(model: PreTrainedModel, prompt: Prompt, tokens: Tensor) -> Tensor:
    """The same from one pass over everything, after one over the prompt alone."""
    model(input_ids=prompt.ids, use_cache=False)
    whole = torch.cat((prompt.ids, tokens[None, :-1]), dim=1)
    logits: Tensor = model(input_ids=whole, use_cache=False).logits
    return logits[0, -tokens.shape[0] :]


def in_thread(run: Callable[[], T]) -> T:
    """What `run` returns, or raises, in a thread of its own."""
    results: list[T] = []
    errors: list[BaseException] = []

    def target() -> None:
        try:
            results.append(run())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    thread.join(timeout=60)
    assert not thread.is_alive(), "the thread waits for something"
    if errors:
        raise errors[0]
    return results[0]
