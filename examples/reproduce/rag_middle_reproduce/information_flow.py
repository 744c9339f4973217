r"""Information flow: how much the answer depends on each attention weight.

.. math:: I_l(i, j) = \Big|\sum_h A_{l,h}(i, j)\, \frac{\partial L}{\partial A_{l,h}(i, j)}\Big|

``A`` are the attention weights of layer ``l`` and head ``h``, from token ``i`` to token ``j``, and
``L`` is the negative log-likelihood of the right answer: the first-order change of ``L`` were the
layer's weights from ``i`` to ``j`` scaled by a common factor. It is the saliency of Wang et al.,
Label Words are Anchors (arXiv:2305.14160, equation 1; heads are added up before the absolute value,
as in the authors' code). SIW (arXiv:2512.13109, tables 3 and 4, figure 6, appendix C) measures
information flow too. **Not checked** against that paper's text: its measure may be another.

::

    python -m rag_middle_reproduce.information_flow --model lmsys/vicuna-7b-v1.5-16k

prints, by layer, the mean over key-value retrieval prompts of what documents' tokens take from the
first three tokens, what the answer takes from the documents, and all other flow. Layers keep their
whole matrices of weights for the gradient: memory grows with the square of the prompt's length.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rag_middle import PromptError, RagMiddleError, RagMiddleModel, UnsupportedGenerationError
from rag_middle.attention import in_eval_mode
from rag_middle.evaluation import KeyValueRetrieval, position, spread_positions
from rag_middle.layout import PromptLayout
from rag_middle_reproduce.matrix import markdown_table
from rag_middle_reproduce.models import add_model_options, load_chosen

__all__ = ["flow_by_layer", "main", "saliency"]


def saliency(model: RagMiddleModel, ids: Sequence[int], answer: Sequence[int]) -> Tensor:
    """``I_l(i, j)`` of one prompt and its right answer, under the unmodified model.

    Args:
        model: with eager attention, which makes the matrix of weights; left as it is found.
        ids: of the prompt, `n` tokens.
        answer: token ids of the answer, `m` of them: ``L`` adds up over them.

    Returns:
        `[layers, n + m - 1, n + m - 1]` in float32 on the CPU; zero above the diagonal. Row
        ``n - 1`` writes the answer's first token.

    Raises:
        UnsupportedGenerationError: the model does not hand out the attention weights it uses.
        PromptError: an answer without tokens.
    """
    if not answer:
        raise PromptError("Information flow is that into an answer: give one of at least a token.")
    inner, n = model.model, len(ids)
    tokens = torch.tensor([[*ids, *answer]], device=model.device)
    flows: dict[int, Tensor] = {}

    def keep(layer: int, weights: Tensor, gradient: Tensor) -> None:
        flows[layer] = (weights.detach() * gradient)[0].float().sum(0).abs().cpu()

    with torch.enable_grad(), in_eval_mode(inner):
        # Gradients run back to the input alone, so that no weight of the model collects any.
        embedded = inner.get_input_embeddings()(tokens[:, :-1]).detach().requires_grad_()
        output: Any = inner(inputs_embeds=embedded, use_cache=False, output_attentions=True)
        layers = output.attentions or ()
        if not layers or any(weights is None for weights in layers):
            raise UnsupportedGenerationError(
                "This model does not hand out its attention weights: load it with "
                "attn_implementation='eager'."
            )
        hooks = [
            weights.register_hook(partial(keep, layer, weights))
            for layer, weights in enumerate(layers)
        ]
        steps = output.logits[0, n - 1 :].float().log_softmax(-1)
        loss = -steps.gather(1, tokens[0, n:, None]).sum()
        torch.autograd.grad(loss, embedded)
        for hook in hooks:
            hook.remove()
    return torch.stack([flows[layer] for layer in range(len(layers))])


def flow_by_layer(flow: Tensor, layout: PromptLayout, sources: Sequence[int]) -> dict[str, Tensor]:
    """Means of `saliency` over groups of token pairs, `[layers]` each.

    A token's flow to itself belongs to no group.

    Args:
        flow: `[layers, n + m - 1, n + m - 1]`.
        layout: of the prompt.
        sources: tokens before the documents, by index.

    Returns:
        ``token t -> documents`` for every source ``t``: from all tokens of documents to it;
        ``documents -> answer``: from the rows that write the answer to all tokens of documents;
        ``other``: all other pairs.

    Raises:
        PromptError: no document tokens, or a source that is not before them.
    """
    start, end = layout.prefix_tokens, layout.suffix_start
    if start == end or any(not 0 <= source < start for source in sources):
        raise PromptError(
            f"Information flows into documents from tokens before them: there are {start} tokens "
            f"before and {end - start} in the documents; got the tokens {list(sources)}."
        )
    pairs = torch.ones(flow.shape[1:], dtype=torch.bool).tril(-1)
    groups = {}
    for source in sources:
        group = torch.zeros_like(pairs)
        group[start:end, source] = True
        groups[f"token {source} -> documents"] = group
    answer = torch.zeros_like(pairs)
    answer[layout.length - 1 :, start:end] = True
    groups["documents -> answer"] = answer & pairs
    groups["other"] = pairs & ~torch.stack(list(groups.values())).any(0)
    return {name: flow[:, group].mean(1) for name, group in groups.items()}


def main(arguments: list[str] | None = None) -> None:
    """Information flow by layer in prompts of key-value retrieval."""
    parser = argparse.ArgumentParser(
        prog="python -m rag_middle_reproduce.information_flow", description=main.__doc__
    )
    add_model_options(parser, try_out="one short prompt")
    parser.add_argument("--pairs", type=int, default=50, help="pairs in a prompt")
    parser.add_argument("--positions", type=int, default=5, help="positions of the gold pair")
    parser.add_argument("--tokens", type=int, default=3, help="first tokens that are compared")
    parser.add_argument("--limit", type=int, default=20, help="questions")
    options = parser.parse_args(arguments)
    if options.try_out:
        vars(options).update(model="small", pairs=3, positions=2, limit=1)
    try:
        model = load_chosen(options, attn_implementation="eager")
        task = KeyValueRetrieval(keys=options.pairs)
        conditions = [position(at) for at in spread_positions(options.pairs, options.positions)]
        flows: dict[str, list[Tensor]] = {}
        for item in task.items(options.limit, 0):
            for condition in conditions:
                prompt = model.encode(task.prompt(item, condition), method="none", template="raw")
                answer = model.token_ids(f" {task.target(item, condition)}")
                flow = saliency(model, prompt.input_ids, answer)
                for name, values in flow_by_layer(
                    flow, prompt.layout, range(options.tokens)
                ).items():
                    flows.setdefault(name, []).append(values)
    except RagMiddleError as error:
        sys.exit(f"Error: {error}")
    means = torch.stack([torch.stack(values).mean(0) for values in flows.values()], dim=1)
    rows = [
        [str(layer), *(f"{value:.3e}" for value in row)] for layer, row in enumerate(means.tolist())
    ]
    print(markdown_table(["layer", *flows], rows))


if __name__ == "__main__":
    main()
