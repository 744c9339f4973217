"""A LLaMA decoder from its weights, one whole matrix after the other.

No cache, no batch, no padding: one prompt and the tokens generated so far, `[n]`, all at once. A
method is written beside it as a subclass that overrides `attention`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor


@cache
def turns(head_size: int, theta: float) -> Tensor:
    """By how much every pair of channels turns from one position to the next, float64 `[d/2]`."""
    return theta ** (-2 * torch.arange(head_size // 2, dtype=torch.float64) / head_size)


@dataclass
class NaiveLlama:
    """LLaMA, and Qwen 3 where the weights hold query and key norms.

    Attributes:
        weights: the state dict, names as in the checkpoint.
        layers, heads, kv_heads, head_size: the shape.
        theta: base of the rotary frequencies.
        eps: of the norms.
        prompt_tokens: tokens of the prompt; what follows them was generated.
    """

    weights: Mapping[str, Tensor]
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    theta: float
    eps: float
    prompt_tokens: int

    def logits(self, ids: Tensor) -> Tensor:
        """Logits `[n, vocabulary]` of token ids `[n]`."""
        hidden = self.weights["model.embed_tokens.weight"][ids]
        for layer in range(self.layers):
            name = f"model.layers.{layer}"
            normed = self.norm(hidden, f"{name}.input_layernorm")
            attended = self.attention(layer, normed).transpose(0, 1).flatten(1)  # [n, h * d]
            hidden = hidden + self.linear(attended, f"{name}.self_attn.o_proj")
            normed = self.norm(hidden, f"{name}.post_attention_layernorm")
            gate = torch.nn.functional.silu(self.linear(normed, f"{name}.mlp.gate_proj"))
            up = self.linear(normed, f"{name}.mlp.up_proj")
            hidden = hidden + self.linear(gate * up, f"{name}.mlp.down_proj")
        return self.linear(self.norm(hidden, "model.norm"), "lm_head")

    def attention(self, layer: int, hidden: Tensor) -> Tensor:
        """Output `[h, n, d]` of one layer for its normed input `[n, hidden]`: causal attention."""
        q, k, v = self.project(layer, hidden)
        positions = torch.arange(hidden.shape[0])
        out = []
        for head in range(self.heads):
            queries = self.rotated(q[head], positions)
            keys = self.rotated(k[self.group(head)], positions)
            out.append(self.weights_of(queries, keys) @ v[self.group(head)])
        return torch.stack(out)

    # -- the parts --------------------------------------------------------------------------------

    def linear(self, x: Tensor, name: str) -> Tensor:
        out = x @ self.weights[f"{name}.weight"].T
        bias = self.weights.get(f"{name}.bias")
        return out if bias is None else out + bias

    def norm(self, x: Tensor, name: str) -> Tensor:
        mean_square = x.pow(2).mean(-1, keepdim=True)
        return x / torch.sqrt(mean_square + self.eps) * self.weights[f"{name}.weight"]

    def project(self, layer: int, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries `[h, n, d]`, keys and values `[g, n, d]`, none of them rotated."""
        name = f"model.layers.{layer}.self_attn"
        q, k, v = (
            self.linear(hidden, f"{name}.{part}_proj")
            .view(hidden.shape[0], -1, self.head_size)
            .transpose(0, 1)
            for part in ("q", "k", "v")
        )
        if f"{name}.q_norm.weight" in self.weights:
            q, k = self.norm(q, f"{name}.q_norm"), self.norm(k, f"{name}.k_norm")
        return q, k, v

    def group(self, head: int) -> int:
        """The key/value head of a query head."""
        return head // (self.heads // self.kv_heads)

    def rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        """`x` `[n, d]` at `positions` `[n]`: channel `i` turns with channel `i + d/2`."""
        half = self.head_size // 2
        angles = positions[:, None] * turns(self.head_size, self.theta)
        cos, sin = torch.cos(angles).to(x.dtype), torch.sin(angles).to(x.dtype)
        first, second = x[:, :half], x[:, half:]
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=1)

    def weights_of(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Causal attention weights `[n, n]`."""
        n = queries.shape[0]
        scores = queries @ keys.T / self.head_size**0.5
        future = torch.ones(n, n).triu(1).bool()
        weights: Tensor = scores.masked_fill(future, float("-inf")).softmax(-1)
        return weights
