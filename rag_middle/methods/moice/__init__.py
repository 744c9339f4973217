"""MoICE (arXiv:2406.19598): attentions with several rotary bases, mixed. Needs training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from rag_middle.attention import AttentionPlan, Layer, LayerHandler, ModelTraits
from rag_middle.errors import MethodConfigError
from rag_middle.methods.base import MethodInfo
from rag_middle.methods.document_method import AttentionMethod
from rag_middle.methods.rules import no_default, option, whole
from rag_middle.methods.scales import BASE_FACTORS, PUBLISHED_BASES
from rag_middle.tokens import TokenizedPrompt

if TYPE_CHECKING:
    from rag_middle.methods.moice.routers import ExpertRouters

_UNIFORM = "uniform"


@dataclass(frozen=True, kw_only=True)
class MoICE(AttentionMethod):
    r"""A trained router mixes attention outputs of several rotary bases, per head and token.

    .. math:: o = \sum_e p_e \mathrm{Attn}_e(q, K, V), \qquad
        p = \mathrm{softmax}(W_2(\mathrm{silu}(W_1 x) \odot W_3 x))

    with ``x`` the query as the first expert rotates it. The largest `top_k` of ``p`` are kept and
    scaled to a sum of 1.

    This method needs training: `train_routers` of ``examples/train_moice.py`` trains the
    routers with the model frozen.

    Attributes:
        routers: an `ExpertRouters`, or the directory of saved ones; ``"uniform"`` mixes all experts
            in equal parts, which is no MoICE and needs no training. There is no default.
        base_factors: for ``"uniform"`` only, what the model's own RoPE base is multiplied by, one
            per expert; all 1 is neutral. Routers bring their own.
        top_k: experts kept per head and token; ``None`` for all.

    References:
        Lin et al., Mixture of In-Context Experts Enhance LLMs' Long Context Awareness,
        arXiv:2406.19598. Follows the authors' code, with a router per layer that all its heads
        share, where the paper has one per head. Differs: bases are factors of the model's own;
        positions are those of tokens in left-padded batches, where the code takes the first row's.
    """

    name: ClassVar[str] = "moice"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="MoICE (needs training)",
        paper="arXiv:2406.19598",
        idea="Trained routers mix attentions with several rotary bases, per head and token.",
        cost="as many attentions as experts in every layer",
        requires="rotary position embedding (RoPE); routers trained for the model",
        can_hurt_when="routers were trained on prompts unlike yours",
    )

    # Hidden states would have to be scaled, and weights changed, in each of several attentions.
    claims = frozenset({"positions", "hidden", "weights"})
    defers_rotation = has_kernels = has_gradients = True

    routers: ExpertRouters | str | Path = no_default(
        "moice needs training: pass routers with a directory that examples/train_moice.py made for "
        "this model, or routers='uniform' to mix all bases in equal parts.",
        example=_UNIFORM,
    )
    base_factors: tuple[float, ...] | None = option(None, BASE_FACTORS)
    top_k: int | None = option(None, whole(1))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.base_factors is not None and self.routers != _UNIFORM:
            raise MethodConfigError(
                "MoICE: base_factors goes with routers='uniform'; routers bring their own."
            )
        if isinstance(self.routers, str | Path) and self.routers != _UNIFORM:
            from rag_middle.methods.moice.routers import ExpertRouters

            object.__setattr__(self, "routers", ExpertRouters.load(self.routers))
        if self.top_k is not None:
            if self.routers == _UNIFORM:
                raise MethodConfigError("MoICE: top_k needs routers to choose by.")
            if self.top_k > len(self.expert_factors):
                raise MethodConfigError(
                    f"MoICE: top_k is {self.top_k}, and there are {len(self.expert_factors)} "
                    "experts."
                )

    @property
    def expert_factors(self) -> tuple[float, ...]:
        """What the model's own base is multiplied by, one per expert."""
        if self.trained is not None:
            return self.trained.base_factors
        return self.base_factors or PUBLISHED_BASES

    @property
    def trained(self) -> ExpertRouters | None:
        """The routers; ``None`` where all experts are mixed in equal parts."""
        return None if self.routers == _UNIFORM else cast("ExpertRouters", self.routers)

    @property
    def layers(self) -> tuple[int, ...] | None:
        """Those that have a router; ``None`` for all."""
        return None if self.trained is None else tuple(sorted(self.trained.gates))

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        """Several attentions in every layer that has a router."""
        plan = super().plan(prompts, traits)
        for layer, router in ({} if self.trained is None else self.trained.gates).items():
            size, expected = router.gate.shape[1], traits.layers[layer].head_size
            if layer in plan.layers and size != expected:
                raise MethodConfigError(
                    f"MoICE: the router of layer {layer} is made for heads of {size} dimensions, "
                    f"and this {traits.model_type} model has {expected}: it was trained for "
                    "another model."
                )
        return plan

    def start(self, layer: Layer) -> LayerHandler:
        """Mixes the attentions of several bases."""
        from rag_middle.methods.moice.attention import ExpertAttention

        return ExpertAttention(layer, self)

    @property
    def is_neutral(self) -> bool:
        """True where every base is the model's own."""
        return all(factor == 1 for factor in self.expert_factors)
