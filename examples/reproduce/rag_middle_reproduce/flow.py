r"""What SIW (arXiv:2512.13109) measures beside answers: information flow, and the initial token.

.. math:: I_l(i, j) = \Big|\sum_h A_{l,h}(i, j)\, \frac{\partial L}{\partial A_{l,h}(i, j)}\Big|

``A`` are the attention weights of layer ``l`` and head ``h``, from token ``i`` to token ``j``, and
``L`` is the negative log-likelihood of the right answer: the first-order change of ``L`` were the
layer's weights from ``i`` to ``j`` scaled by a common factor. It is the saliency of Wang et al.,
Label Words are Anchors (arXiv:2305.14160, equation 1; heads are added up before the absolute value,
as in the authors' code), which SIW's appendix C names; its own formulas are lost in the text.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rag_middle import PromptError, RagMiddleModel, UnsupportedGenerationError
from rag_middle.attention import in_eval_mode
from rag_middle.evaluation import LabelledMethod, position
from rag_middle.layout import PromptLayout
from rag_middle.methods import NoMethod
from rag_middle.tokens import TokenizedPrompt
from rag_middle_reproduce.last_token import last_token_masses
from rag_middle_reproduce.tables import markdown_table
from rag_middle_reproduce.views import Asked, Shown, View


@dataclass(frozen=True, kw_only=True)
class FlowView(View):
    """Information flow to the answer by layer, from documents and from the instruction around them.

    Layers keep their whole matrices of weights for the gradient: memory grows with the square of
    the prompt's length.
    """

    attn_implementation = "eager"

    def shown(
        self, model: RagMiddleModel, asked: Sequence[Asked], methods: Sequence[LabelledMethod]
    ) -> Iterator[Shown]:
        """A table for each task: layers from top to bottom."""
        for label, task, measurement in asked:
            flows: dict[str, list[Tensor]] = {}
            for item in task.items(measurement.limit, measurement.seed):
                for gold in measurement.gold_positions(task):
                    prompt = model.encode(
                        task.prompt(item, position(gold)), template=measurement.template
                    )
                    answer = model.token_ids(f" {task.target(item, position(gold))}")
                    flow = saliency(model, prompt.input_ids, answer)
                    for name, values in flow_by_layer(flow, prompt.layout).items():
                        flows.setdefault(name, []).append(values)
            means = {name: torch.stack(values).mean(0).tolist() for name, values in flows.items()}
            rows = [
                [str(layer), *(f"{value:.3e}" for value in row)]
                for layer, row in enumerate(zip(*means.values(), strict=True))
            ]
            table = markdown_table(["layer", *means], rows)
            yield Shown(name=label, numbers={"task": label, **means}, table=table)


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
    """
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


def flow_by_layer(flow: Tensor, layout: PromptLayout) -> dict[str, Tensor]:
    """Means of `saliency` over the rows that write the answer, `[layers]` each.

    Args:
        flow: `[layers, n + m - 1, n + m - 1]`.
        layout: of the prompt of `n` tokens.

    Returns:
        By what the answer takes from: ``documents``, ``instruction`` (all other tokens of the
        prompt but the one that writes) and ``initial token``, which is part of the instruction.

    Raises:
        PromptError: no document tokens.
    """
    start, end = layout.prefix_tokens, layout.suffix_start
    if start == end:
        raise PromptError("Information flows from documents: mark some in the prompt.")
    answering = flow[:, layout.length - 1 :].mean(1)  # [layers, n + m - 1]
    instruction = [*range(start), *range(end, layout.length - 1)]
    return {
        "documents": answering[:, start:end].mean(1),
        "instruction": answering[:, instruction].mean(1),
        "initial token": answering[:, 0],
    }


@dataclass(frozen=True, kw_only=True)
class InitialTokenView(View):
    """Attention of the last token to the initial token, wherever it stands (table 4).

    In texts of random tokens, in place of one of them, averaged over layers, heads and texts; of
    which layers the table is, the paper does not say.

    Attributes:
        places: 0-based positions of the token.
        tokens: of a text.
        texts: that are averaged over.
    """

    places: tuple[int, ...] = (0, 499, 999, 1499, 1999)
    tokens: int = 2000
    texts: int = 20

    def tried_out(self) -> InitialTokenView:
        return replace(self, places=(0, 9), tokens=20, texts=1)

    def shown(
        self, model: RagMiddleModel, asked: Sequence[Asked], methods: Sequence[LabelledMethod]
    ) -> Iterator[Shown]:
        """A table with a column for each place."""
        initial = model.encode("A").input_ids[0]
        draw, special = random.Random(0), set(model.tokenizer.all_special_ids)
        ordinary = [token for token in range(len(model.tokenizer)) if token not in special]
        masses = torch.zeros(len(self.places))
        for _ in range(self.texts):
            text = draw.choices(ordinary, k=self.tokens)
            for column, place in enumerate(self.places):
                ids = (*text[:place], initial, *text[place + 1 :])
                prompt = TokenizedPrompt(
                    input_ids=ids, layout=PromptLayout(len(ids), ()), document_ids=()
                )
                segments = torch.zeros(len(ids), 1)
                segments[place] = 1
                mass = last_token_masses(model.model, NoMethod(), prompt, segments)
                masses[column] += mass.mean() / self.texts
        row = [f"{mass:.3f}" for mass in masses.tolist()]
        header = [f"token {initial} at", *map(str, self.places)]
        yield Shown(
            name="attention to the initial token",
            numbers={"places": self.places, "attention": masses.tolist()},
            table=markdown_table(header, [["attention", *row]]),
        )
