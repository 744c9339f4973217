"""Attention Buckets and MoICE against plain matrices; MoICE's routers: files and training."""

from __future__ import annotations

from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from examples.train_moice import new_routers, train_routers
from rag_middle.attention import model_traits
from rag_middle.errors import MethodConfigError
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import AttentionBuckets, MoICE
from rag_middle.methods.moice.kernels import ExpertGate, expert_scores
from rag_middle.methods.moice.routers import ExpertRouters
from rag_middle.ops.rope import RotaryStyle, rotate
from tests.conftest import FamilyModel
from tests.contract.running import distance, logits_under, prompt_logits
from tests.contract.snapshot import snapshot
from tests.families import FAMILIES
from tests.methods.against_naive import FACTORS, PROMPTS, TOLERANCE, WAYS, naive, routers_for
from tests.reference.llama import NaiveLlama
from tests.tiny_models import HEAD_SIZE, HIDDEN
from tests.tokenizers import byte_level_bpe

# -- Attention Buckets ---------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "implementation"), WAYS)
def test_buckets_are_models_with_other_bases(
    model: str, implementation: str, family_model: FamilyModel
) -> None:
    transformer = family_model(model, implementation)
    method = AttentionBuckets(base_factors=FACTORS)
    runner = RagMiddleModel(transformer, byte_level_bpe(), self_check=False)
    for prompt in PROMPTS[:2]:
        readings = []
        for factor in FACTORS:
            twin = naive(NaiveLlama, transformer, prompt)
            twin.theta *= factor
            readings.append(twin.logits(prompt.ids[0])[-1].softmax(-1))
        confidence = [reading.max() for reading in readings]
        shares = torch.stack(confidence) / torch.stack(confidence).sum()
        expected = (shares[:, None] * torch.stack(readings)).sum(0)
        combined = runner.logits(prompt.tokens, method=method)
        assert distance(combined, expected.log()) < TOLERANCE
        assert distance(combined, readings[0].log()) > 100 * TOLERANCE


def test_unlikely_tokens_keep_a_finite_logarithm() -> None:
    logits = torch.tensor([[0.0, -200.0], [0.0, -300.0]])
    torch.testing.assert_close(
        AttentionBuckets(base_factors=(1, 2)).combine(logits), torch.tensor([0.0, -200 - log(2)])
    )


# -- MoICE ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairs", [4, 3])
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_scores_of_a_token_are_those_of_rotated_keys(
    pairing: Literal["half", "interleaved"], pairs: int
) -> None:
    style, frequencies = RotaryStyle(pairing, pairs), torch.rand(2, pairs)
    query, keys = torch.randn(3, 4, 8), torch.randn(3, 2, 5, 8)

    def tables(positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions[:, None, None] * frequencies
        return angles.cos(), angles.sin()

    scores = expert_scores(query, keys, *tables(torch.arange(4, -1, -1)), style)
    cos, sin = tables(torch.arange(7, 12))
    for expert in range(2):
        turned = rotate(keys, cos[:, expert], sin[:, expert], style).repeat_interleave(2, dim=1)
        own = rotate(query[:, :, None], cos[-1:, expert], sin[-1:, expert], style)
        torch.testing.assert_close(scores[:, :, expert, None], own @ turned.transpose(-1, -2))


@torch.no_grad()
def test_outliers_of_queries_and_keys_fit_float16() -> None:
    """Their product does not, and the unmodified model adds products up in float32."""
    slow = {"rope_type": "default", "rope_theta": 1e12}  # the last pair does not turn
    model = FAMILIES["qwen2"].build("sdpa", rope_parameters=slow)
    first, second = HEAD_SIZE // 2 - 1, HEAD_SIZE - 1
    for layer in model.model.layers:
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            projection.weight.view(-1, HEAD_SIZE, HIDDEN)[:, (first, second)] = 0
            bias = projection.bias.view(-1, HEAD_SIZE)
            bias[:, first], bias[:, second] = 300, 0
    model.half()
    neutral = MoICE(routers="uniform", base_factors=(1, 1))
    plain = prompt_logits(model, PROMPTS[0])
    assert distance(logits_under(model, neutral, PROMPTS[0]), plain) < 0.1


def test_routers_are_saved_and_loaded(tmp_path: Path, llama: Any) -> None:
    routers = replace(routers_for(llama), provenance={"model": "tiny", "trained_steps": 7})
    routers.save(tmp_path / "routers")
    files = {path.name for path in (tmp_path / "routers").iterdir()}
    assert files == {"routers.safetensors"}
    method = MoICE(routers=str(tmp_path / "routers"))
    loaded = method.routers
    assert isinstance(loaded, ExpertRouters)
    assert loaded.base_factors == FACTORS
    assert loaded.provenance == routers.provenance
    for layer, gate in routers.gates.items():
        assert all(map(torch.equal, gate, loaded.gates[layer]))


def test_routers_of_one_provenance_are_told_apart(family_model: FamilyModel) -> None:
    """Records of measurements know a method by its repr."""
    new = new_routers(model_traits(family_model("llama")), FACTORS)
    some = {layer: ExpertGate(*(w.clone() for w in gate)) for layer, gate in new.gates.items()}
    assert repr(replace(new, gates=some)) == repr(new)
    some[1].up[0, 3] += 1e-5
    assert repr(replace(new, gates=some)) != repr(new)
    assert repr(replace(new, base_factors=(1.0, 0.05, 21.0))) != repr(new)


@pytest.mark.parametrize("damage", ["missing", "weights", "version"])
def test_routers_that_cannot_be_read_are_refused(
    damage: str, tmp_path: Path, family_model: FamilyModel
) -> None:
    if damage != "missing":
        routers_for(family_model("llama")).save(tmp_path)
    file = tmp_path / "routers.safetensors"
    if damage == "version":
        file.write_bytes(file.read_bytes().replace(b'version\\": 2', b'version\\": 9'))
    if damage == "weights":
        file.write_bytes(b"no weights")
    with pytest.raises(MethodConfigError, match="no routers can be read"):
        MoICE(routers=tmp_path)


def test_training_makes_answers_likelier_and_leaves_the_model_alone(llama: Any) -> None:
    examples = [((5, 6, 7, 8, 9, 10), (11, 12)), ((20, 21, 22, 23), (24, 25))]
    losses: list[float] = []
    before, trainable = snapshot(llama), [p.requires_grad for p in llama.parameters()]
    routers = train_routers(
        llama,
        examples,
        base_factors=FACTORS,
        steps=30,
        learning_rate=0.1,
        on_step=lambda step, loss: losses.append(loss),
    )
    assert snapshot(llama) == before
    assert sum(losses[-4:]) < sum(losses[:4]) - 0.1
    assert [p.requires_grad for p in llama.parameters()] == trainable
    assert all(parameter.grad is None for parameter in llama.parameters())
    assert routers.provenance["trained_steps"] == 30
    assert routers.provenance["last_loss"] < routers.provenance["first_loss"]
    assert not any(weight.requires_grad for gate in routers.gates.values() for weight in gate)
    more = train_routers(llama, examples, steps=2, start=routers)
    assert more.provenance["trained_steps"] == 32
    assert more.base_factors == FACTORS


# -- parameters ----------------------------------------------------------------------------------


def test_routers_that_do_not_fit_are_refused(llama: Any) -> None:
    routers = routers_for(llama)
    with pytest.raises(MethodConfigError, match="there are 3 experts"):
        MoICE(routers=routers, top_k=4)
    with pytest.raises(MethodConfigError, match="need"):
        replace(routers, base_factors=(1.0, 2.0))
    with pytest.raises(MethodConfigError, match="no router"):
        replace(routers, gates={})
    narrow = {
        layer: ExpertGate(g[:, :4], d, u[:, :4]) for layer, (g, d, u) in routers.gates.items()
    }
    with pytest.raises(MethodConfigError, match="heads of 4 dimensions"):
        MoICE(routers=replace(routers, gates=narrow)).plan((), model_traits(llama))
