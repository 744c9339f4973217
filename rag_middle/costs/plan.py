"""Whether a model fits a GPU, and what a method costs there: predicted from its config."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from rag_middle.attention import model_traits
from rag_middle.costs.counting import Work
from rag_middle.costs.gpus import Gpu
from rag_middle.costs.methods import MethodWork, count_method, prompt_of, without_numbers
from rag_middle.errors import MethodConfigError, RagMiddleError, UnsupportedArchitectureError
from rag_middle.methods import Method, NoMethod

__all__ = ["WEIGHT_FORMATS", "CostPlan", "MethodCost", "plan_costs"]

#: Bytes per number of the decoder's matrices; embeddings, the head and norms keep 16 bits.
#: 4-bit formats store scales beside the numbers: half a bit more for each.
WEIGHT_FORMATS = {"bfloat16": 2.0, "int8": 1.0, "4-bit": 4.5 / 8}
#: What CUDA and PyTorch take for themselves, in bytes.
_RUNTIME = 0.8e9
#: Lengths of prompts to plan for where none are named.
_LENGTHS = (4096, 8192)


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodCost:
    """A method at one prompt length, all of it predicted.

    Attributes:
        method: its name.
        tokens: of the prompt.
        first_token_seconds: from the prompt to the first token, in bfloat16.
        token_seconds: of each token after it.
        first_token_ratio: to the unmodified model.
        token_ratio: likewise.
        cache_bytes: KV cache of the prompt.
        working_bytes: most memory beside the weights, the cache included.
        fits: by weight format, whether weights and working memory fit the GPU.
        problem: why the model cannot take the method or the prompt; the numbers are 0 then.
    """

    method: str
    tokens: int
    first_token_seconds: float = 0.0
    token_seconds: float = 0.0
    first_token_ratio: float = 0.0
    token_ratio: float = 0.0
    cache_bytes: int = 0
    working_bytes: int = 0
    fits: dict[str, bool] | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPlan:
    """A model on a GPU.

    Attributes:
        parameters: numbers in the model's weights.
        weight_bytes: by weight format.
        gpu: it is planned for.
        documents: in the prompts.
        costs: by length and method.
    """

    parameters: int
    weight_bytes: dict[str, int]
    gpu: Gpu
    documents: int
    costs: tuple[MethodCost, ...]


def plan_costs(
    config: PretrainedConfig,
    methods: Sequence[Method],
    *,
    gpu: Gpu,
    documents: int,
    tokens: Sequence[int] | None = None,
) -> CostPlan:
    """Predict memory and time of methods on a GPU. Nothing is loaded and nothing measured.

    Args:
        methods: to compare with the unmodified model.
        gpu: from `rag_middle.costs.gpus`.
        documents: in each prompt, equally long.
        tokens: lengths of the prompts; by default 4096 and 8192, as far as the model's context
            window goes. Longer ones than that are a problem of every method.

    Raises:
        UnsupportedArchitectureError: an encoder-decoder, a model without attention, or one whose
            run depends on the numbers in it.
        MethodConfigError: prompts too short for the documents.
    """
    model_type = str(getattr(config, "model_type", "model"))
    try:
        model = without_numbers(config)
    except RagMiddleError:
        raise
    except Exception as error:  # whatever a model's own code does on the way
        raise _unplanned(model_type, error) from error
    matrices = _quantized_parameters(model)
    parameters = sum(p.numel() for p in model.parameters())
    weights = {
        name: int(matrices * size + (parameters - matrices) * 2)
        for name, size in WEIGHT_FORMATS.items()
    }
    costs: list[MethodCost] = []
    window = model_traits(model).context_window or inf
    for length in tokens or sorted({int(min(usual, window)) for usual in _LENGTHS}):
        if length > window:
            problem = (
                f"a prompt of {length} tokens exceeds the model's context window of {window} "
                "tokens. Plan for a shorter prompt."
            )
            costs += [
                MethodCost(method=method.name, tokens=length, problem=problem) for method in methods
            ]
            continue
        try:
            prompt = prompt_of(length, documents)
        except ValueError as error:
            raise MethodConfigError(
                f"{error} Plan for longer prompts or fewer documents."
            ) from error
        try:
            plain = count_method(model, NoMethod(), prompt)
        except Exception as error:  # some mixtures of experts look where tokens go
            raise _unplanned(model_type, error) from error
        for method in methods:
            try:
                unmodified = isinstance(method, NoMethod)
                work = plain if unmodified else count_method(model, method, prompt)
            except (RagMiddleError, NotImplementedError) as error:
                problem = " ".join(str(error).split())
                costs.append(MethodCost(method=method.name, tokens=length, problem=problem))
                continue
            costs.append(_cost(method.name, length, work, plain, gpu, weights))
    return CostPlan(
        parameters=parameters,
        weight_bytes=weights,
        gpu=gpu,
        documents=documents,
        costs=tuple(costs),
    )


def _quantized_parameters(model: PreTrainedModel) -> int:
    """How many numbers quantisation stores in fewer bits: matrices but embeddings and the head."""
    head = model.get_output_embeddings()
    kept = (head, *(module for module in model.modules() if isinstance(module, nn.Embedding)))
    whole = {id(weight) for module in kept if module for weight in module.parameters()}
    return sum(w.numel() for w in model.parameters() if w.ndim > 1 and id(w) not in whole)


def _unplanned(model_type: str, error: Exception) -> UnsupportedArchitectureError:
    said = str(error).strip().split("\n")[0]
    return UnsupportedArchitectureError(
        model_type,
        reason=f"its own code does not run without numbers, so its work cannot be counted "
        f"({type(error).__name__}: {said[:200]}).",
        alternative="Plan for a dense model of its size.",
    )


def _cost(
    name: str, tokens: int, work: MethodWork, plain: MethodWork, gpu: Gpu, weights: dict[str, int]
) -> MethodCost:
    first = _seconds(gpu, work.prefill) + work.passes * _seconds(gpu, plain.prefill)
    token = _seconds(gpu, work.decode)
    working = max(work.prefill.peak_bytes, work.cache_bytes)
    return MethodCost(
        method=name,
        tokens=tokens,
        first_token_seconds=first,
        token_seconds=token,
        first_token_ratio=first / _seconds(gpu, plain.prefill),
        token_ratio=token / _seconds(gpu, plain.decode),
        cache_bytes=work.cache_bytes,
        working_bytes=working,
        fits={
            weight_format: size + working + _RUNTIME <= gpu.gigabytes * 1e9
            for weight_format, size in weights.items()
        },
    )


def _seconds(gpu: Gpu, work: Work) -> float:
    return max(gpu.computing(work), gpu.launching(work))


def as_json(plan: CostPlan, **more: Any) -> dict[str, Any]:
    """Facts by name, for reports."""
    return {
        **more,
        "predicted": True,
        "gpu": plan.gpu.name,
        "parameters": plan.parameters,
        "weight_bytes": plan.weight_bytes,
        "documents": plan.documents,
        "costs": [
            {name: getattr(cost, name) for name in MethodCost.__slots__} for cost in plan.costs
        ],
    }
