"""The tiny models are fit to test with: consistent without us, and sensitive to positions."""

import inspect
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import FamilyModel
from tests.families import FAMILIES, SUPPORTED, Family
from tests.tiny_models import VOCABULARY

NAMES = [(name,) for name in FAMILIES]
PAIRS = [(name, way) for name, family in FAMILIES.items() for way in family.implementations]

# The short row grows past 32 tokens while decoding, where dynamic and longrope change course.
LONG, SHORT, GENERATED = 40, 30, 4


def _batch() -> tuple[Tensor, Tensor]:
    """Token ids and mask ``[2, LONG]``: a long row, and a short one padded on the left."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(1, VOCABULARY, (2, LONG), generator=generator)
    mask = torch.ones_like(ids)
    ids[1, : LONG - SHORT] = mask[1, : LONG - SHORT] = 0
    return ids, mask


def _logits(model: nn.Module, ids: Tensor, mask: Tensor | None = None, **more: Any) -> Tensor:
    """Logits ``[b, n, vocabulary]``, positions counted from each row's first real token."""
    if mask is not None and "position_ids" in inspect.signature(model.forward).parameters:
        more.setdefault("position_ids", (mask.cumsum(-1) - 1).clamp(min=0))
    logits: Tensor = model(input_ids=ids, attention_mask=mask, use_cache=False, **more).logits
    return logits


def _distance(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item()


def _expect(distance: float, equal: bool, family: Family) -> None:
    if equal:
        assert distance < family.tolerance
    else:
        assert distance > 0.1, f"{family.name} is consistent here, say so in its entry"


@pytest.mark.pairs(("name", "way"), PAIRS)
def test_left_padding_changes_nothing(name: str, way: str, family_model: FamilyModel) -> None:
    model, (ids, mask) = family_model(name, way), _batch()
    together = _logits(model, ids, mask)
    alone = _logits(model, ids[1:, LONG - SHORT :])
    assert _distance(together[:1], _logits(model, ids[:1])) < FAMILIES[name].tolerance
    distance = _distance(together[1:, LONG - SHORT :], alone)
    _expect(distance, FAMILIES[name].batch_equals_single, FAMILIES[name])


@pytest.mark.pairs(("name", "way"), PAIRS)
def test_cached_decoding_equals_one_pass(name: str, way: str, family_model: FamilyModel) -> None:
    model: Any = family_model(name, way)
    ids, _ = _batch()
    prompt = ids[1:, LONG - SHORT :]
    out = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=GENERATED,
        return_dict_in_generate=True,
        output_logits=True,
    )
    assert out.sequences.shape[1] == SHORT + GENERATED
    one_pass = _logits(model, out.sequences[:, :-1])[:, SHORT - 1 :]
    distance = _distance(torch.stack(out.logits, dim=1), one_pass)
    _expect(distance, FAMILIES[name].cached_equals_full, FAMILIES[name])


@pytest.mark.pairs(("name",), NAMES)
def test_generation_from_a_padded_batch(name: str, family_model: FamilyModel) -> None:
    model: Any = family_model(name)
    ids, mask = _batch()
    together = model.generate(ids, attention_mask=mask, max_new_tokens=GENERATED)
    assert together.shape == (2, LONG + GENERATED)
    if FAMILIES[name].batch_equals_single:
        prompt = ids[1:, LONG - SHORT :]
        alone = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=GENERATED
        )
        assert together[1, LONG:].tolist() == alone[0, SHORT:].tolist()


@pytest.mark.pairs(("name",), NAMES)
def test_both_implementations_agree(name: str, family_model: FamilyModel) -> None:
    family, (ids, mask) = FAMILIES[name], _batch()
    if "sdpa" not in family.implementations:
        try:
            family.build("sdpa")
        except ValueError:
            return
        pytest.skip("this version of transformers loads it")
    real = mask.bool()
    first, second = (_logits(family_model(name, way), ids, mask) for way in ("sdpa", "eager"))
    distance = _distance(first[real], second[real])
    _expect(distance, family.implementations_agree, family)


@pytest.mark.pairs(("name",), NAMES)
def test_logits_depend_on_positions(
    name: str, family_model: FamilyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, (ids, _) = family_model(name), _batch()
    ids = ids[:1]
    plain = _logits(model, ids)
    if FAMILIES[name].traits.positions == "alibi":
        module = sys.modules[type(model).__module__]
        build = module.build_alibi_tensor
        monkeypatch.setattr(
            module, "build_alibi_tensor", lambda *a, **kw: torch.zeros_like(build(*a, **kw))
        )
        moved = _logits(model, ids, torch.ones_like(ids))
    else:
        moved = _logits(model, ids, position_ids=2 * torch.arange(LONG)[None])
    # Logits have a standard deviation of one or more.
    assert _distance(plain, moved) > 0.3


# What the table says of the rotation is checked against the models themselves: each attention
# layer runs once as it is and once with cosines of one and sines of zero.


def _pair_angles(table: Tensor, size: int) -> Tensor:
    """One value per channel pair, ``[b, 1, n, size/2]``, from any layout a family uses."""
    table = table[:, None]
    if table.shape[-1] == size // 2:
        return table
    neighbours = torch.equal(table[..., 0::2], table[..., 1::2])
    return table[..., 0::2] if neighbours else table[..., : size // 2]


def _turn(x: Tensor, cos: Tensor, sin: Tensor, pairing: str, size: int) -> Tensor:
    cos, sin = _pair_angles(cos, size), _pair_angles(sin, size)
    turned = x.clone()
    first, second = slice(0, size // 2), slice(size // 2, size)
    if pairing == "interleaved":
        first, second = slice(0, size, 2), slice(1, size, 2)
    turned[..., first] = x[..., first] * cos - x[..., second] * sin
    turned[..., second] = x[..., second] * cos + x[..., first] * sin
    return turned


@pytest.mark.pairs(("name",), [(name,) for name in SUPPORTED])
def test_traits_describe_the_model(
    name: str, family_model: FamilyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    traits = FAMILIES[name].traits
    model, (ids, _) = family_model(name, "eager"), _batch()
    source = sys.modules[type(model).__module__]
    eager = source.eager_attention_forward
    calls: list[tuple[nn.Module, Tensor, Tensor, dict[str, Any]]] = []
    tables: list[tuple[Tensor, Tensor]] = []

    def record(module: nn.Module, q: Tensor, k: Tensor, *rest: Any, **settings: Any) -> Any:
        calls.append((module, q, k, settings))
        return eager(module, q, k, *rest, **settings)

    def unrotated_first(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        cos, sin = kwargs["position_embeddings"]
        tables.append((cos, sin))
        still = {"position_embeddings": (torch.ones_like(cos), torch.zeros_like(sin))}
        module.forward(*args, **kwargs | still)

    monkeypatch.setattr(source, "eager_attention_forward", record)
    layers = [m for m in model.modules() if type(m).__name__.endswith("Attention")]
    handles = [m.register_forward_pre_hook(unrotated_first, with_kwargs=True) for m in layers]
    try:
        _logits(model, ids[:1])
    finally:
        for handle in handles:
            handle.remove()

    assert len(layers) == model.config.num_hidden_layers - len(traits.linear_layers)
    for (cos, sin), before, after in zip(tables, calls[0::2], calls[1::2], strict=True):
        module, *still, settings = before
        _, *turned, _ = after
        layer = module.layer_idx
        assert layer not in traits.linear_layers
        assert still[0].shape[-1] == traits.head_size
        assert still[1].shape[1] == traits.key_value_heads
        window = settings.get("sliding_window")
        assert window == (traits.window if layer in traits.sliding_layers else None)
        assert settings.get("softcap") == traits.softcap
        assert (settings.get("s_aux") is not None) == traits.sinks
        # bitnet's sub-norm sits behind the attention
        norms = [n for n, _ in module.named_children() if "norm" in n and "sub" not in n]
        assert bool(norms) == (traits.qk_norm is not None)
        assert hasattr(module, "k_proj") != traits.fused
        for x, y in zip(still, turned, strict=True):
            if layer in traits.nope_layers:
                assert torch.equal(x, y)
            else:
                assert traits.pairing is not None
                expected = _turn(x, cos, sin, traits.pairing, traits.rotary_size)
                # A learned norm after the rotation does not commute with it.
                assert (_distance(expected, y) < 1e-5) == (traits.qk_norm != "after")
