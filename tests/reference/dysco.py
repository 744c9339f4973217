"""DySCO (arXiv:2602.22175): token by token, each one looked at and then read with scaled scores."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log

import torch
from torch import Tensor

from tests.reference.llama import NaiveLlama


@dataclass
class NaiveDySCO(NaiveLlama):
    """Keys and values of the tokens so far lie in lists, by layer.

    Attributes:
        heads: retrieval heads, pairs of layer and head.
        strength, top_p, top_k, decay: of the paper.
        changed: last tokens of the prompt that attend under scaled scores.
        observed: tokens before those, whose attention is looked at.
        never: positions in the prompt that are not scaled.
    """

    heads_of_retrieval: Sequence[tuple[int, int]] = ()
    strength: float = 1.0
    top_p: float = 1.0
    top_k: int = 10**6
    decay: float = 0.0
    changed: int = 1
    observed: int = 0
    never: Sequence[int] = ()
    keys: list[list[Tensor]] = field(default_factory=list)
    values: list[list[Tensor]] = field(default_factory=list)

    def logits(self, ids: Tensor) -> Tensor:
        self.keys = [[] for _ in range(self.layers)]
        self.values = [[] for _ in range(self.layers)]
        first = self.prompt_tokens - self.changed
        relevance: list[float] = []
        rows = []
        for position, token in enumerate(ids.tolist()):
            row, attention = self.read(token, position, [0.0] * (position + 1))
            if position >= first - self.observed:
                relevance = self.with_newest(relevance, attention)
            if position >= first:
                for layer in range(self.layers):  # as if the token had not been read
                    self.keys[layer].pop()
                    self.values[layer].pop()
                row, _ = self.read(token, position, self.biases(relevance))
            rows.append(row)
        return torch.stack(rows)

    def read(self, token: int, position: int, biases: list[float]) -> tuple[Tensor, list[float]]:
        """Logits after a token, and what retrieval heads attend to on average."""
        hidden = self.weights["model.embed_tokens.weight"][token][None]
        attention = [0.0] * (position + 1)
        for layer in range(self.layers):
            name = f"model.layers.{layer}"
            q, k, v = self.project(layer, self.norm(hidden, f"{name}.input_layernorm"))
            at = torch.tensor([position])
            self.keys[layer].append(torch.stack([self.rotated(key, at)[0] for key in k]))
            self.values[layer].append(v[:, 0])
            outputs = []
            for head in range(self.heads):
                query, group = self.rotated(q[head], at)[0], self.group(head)
                scores = [
                    float(query @ key[group]) / self.head_size**0.5 + bias
                    for key, bias in zip(self.keys[layer], biases, strict=True)
                ]
                weights = torch.tensor(scores).softmax(0)
                output = torch.zeros(self.head_size)
                for weight, value in zip(weights, self.values[layer], strict=True):
                    output = output + weight * value[group]
                outputs.append(output)
                if (layer, head) in self.heads_of_retrieval:
                    for column, weight in enumerate(weights.tolist()):
                        attention[column] += weight / len(self.heads_of_retrieval)
            attended = torch.cat(outputs)[None]
            hidden = hidden + self.linear(attended, f"{name}.self_attn.o_proj")
            normed = self.norm(hidden, f"{name}.post_attention_layernorm")
            gate = torch.nn.functional.silu(self.linear(normed, f"{name}.mlp.gate_proj"))
            up = self.linear(normed, f"{name}.mlp.up_proj")
            hidden = hidden + self.linear(gate * up, f"{name}.mlp.down_proj")
        return self.linear(self.norm(hidden, "model.norm"), "lm_head")[0], attention

    def with_newest(self, relevance: list[float], attention: list[float]) -> list[float]:
        """Decayed relevance of earlier tokens, plus the newest attention, with a sum of one."""
        earlier = [self.decay * share for share in relevance]
        earlier += [0.0] * (len(attention) - len(earlier))
        both = [old + new for old, new in zip(earlier, attention, strict=True)]
        return [share / sum(both) for share in both]

    def biases(self, relevance: list[float]) -> list[float]:
        """``log strength`` for the most relevant tokens and the newest one, zero for others."""
        order = sorted(range(len(relevance)), key=lambda column: -relevance[column])
        selected, held = [], 0.0
        for column in order:
            held += relevance[column]
            if held > self.top_p and selected:
                break
            selected.append(column)
        chosen = set(selected[: self.top_k]) - set(self.never) | {len(relevance) - 1}
        return [log(self.strength) if c in chosen else 0.0 for c in range(len(relevance))]
