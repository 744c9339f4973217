"""What a method brings to an attention layer: a change, and the handler that carries it out.

A `LayerChange` is a value that a method's `plan` returns for a layer. It names what it decides, so
that two changes of one layer can be told to clash, and starts a `LayerHandler` for each request.
The handler has two hooks: `before` the attention module runs, and its attention call, `attend`.
The handlers of a layer form a chain: each may change the call and let the others go on
(`AttentionContext.proceed`), or answer it itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from rag_middle.errors import UnsupportedGenerationError
from rag_middle.layout import PromptLayout

if TYPE_CHECKING:  # methods bring changes as values, and are listed without PyTorch
    import torch
    from torch import Tensor, nn

    from rag_middle.attention.caches import ReadColumns
    from rag_middle.attention.request import Request
    from rag_middle.attention.rotary import LayerStack, RotaryCall
    from rag_middle.attention.seam import AttentionCall, CacheTap
    from rag_middle.attention.traits import LayerTraits
    from rag_middle.attention.weights import ModelAttention
    from rag_middle.ops.prompt_kernels import RotaryAngles
    from rag_middle.ops.scores import ScoreRule

#: What can be decided about a layer, in the order in which handlers act: by what values are
#: multiplied, at which positions queries and keys are rotated, which keys a query sees and how far
#: away they seem, what is added to queries and keys, and by what attention scores or weights are
#: changed.
Aspect = Literal["values", "positions", "visibility", "hidden", "weights"]
ASPECTS: tuple[Aspect, ...] = get_args(Aspect)

#: Rotary tables grow by this many positions: one table serves many generated tokens.
TABLE_STEP = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """A layer's rotary tables, where they are the same for all tokens of all prompts and heads.

    Attributes:
        scale: position ``m`` is rotated as ``m / scale``.
        base_factor: what the RoPE base is multiplied by.
    """

    scale: float = 1.0
    base_factor: float = 1.0


class LayerChange(ABC):
    """What a method changes about one attention layer: an immutable value, made by its `plan`.

    Class attributes:
        claims: what the change decides. Two changes of a layer must not claim the same.
        defers_rotation: the attention call gets queries and keys before their rotation.
        answers_attention: false where other arguments for the module are all it takes; any
            attention backend then runs as it is.
        depends_on_prompt: false where tokens are treated alike, whatever the prompt's layout.
        has_gradients: true where gradients pass through the attention call as it is answered; else
            a backward pass through it is refused.
    """

    claims: frozenset[Aspect]
    defers_rotation: ClassVar[bool] = False
    answers_attention: ClassVar[bool] = True
    depends_on_prompt: ClassVar[bool] = True
    has_gradients: ClassVar[bool] = False

    @abstractmethod
    def start(self, layer: Layer) -> LayerHandler:
        """The handler of one request in one layer."""

    def check(self, layouts: Sequence[PromptLayout]) -> None:  # noqa: B027 - most fit any prompt
        """Raise `MethodConfigError` where the change does not fit these prompts."""

    @property
    def has_kernels(self) -> bool:
        """Whether it brings Triton kernels beside PyTorch's operators."""
        return False

    @property
    def rotation(self) -> Rotation | None:
        """The layer's rotary tables, where they are all that differs and no prompt decides them.

        A layer can then be changed in an engine that knows nothing of plans, such as vLLM.
        ``None`` where it takes more.
        """
        return None


class LayerHandler:
    """Carries out a change in one layer during one request. The default changes nothing."""

    def before(self, arguments: dict[str, Any]) -> None:
        """Change the module's arguments, by name, before it runs."""

    def tables_by_head(self, arguments: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
        """Tables by which the model itself rotates each head of a token, in place of deferring it.

        Asked of changes with `defers_rotation`, in layers whose rotation takes such tables.

        Args:
            arguments: of the module, by name.

        Returns:
            Cosine and sine `[h, b or 1, 1, 1, w]` in the model's format, one for every query head;
            a key head takes those of its group's first. Where keys have as many heads,
            `[1, b or 1, h, 1, w]`. ``None`` where `attend` rotates.
        """
        return None

    def query_positions(self, rows: int, columns: int) -> Tensor | None:
        """Where the method puts the tokens of a call, `[b, columns]`.

        Asked in layers that scale queries by their positions (`LayerTraits.scales_by_position`).

        Args:
            rows: of the call.
            columns: of the call, from ``layer.start`` on.

        Returns:
            Positions on any device; ``None`` for those that the model gave them.
        """
        return None

    def attend(self, context: AttentionContext) -> tuple[Tensor, Tensor | None]:
        """Answer the module's attention call.

        Returns:
            The output `[b, n, h, dv]` and, where there are any, the attention weights.
        """
        return context.proceed()


@dataclass(slots=True)
class Layer:
    """One attention layer in one request, as its handlers see it.

    Attributes:
        module: the attention module.
        traits: what is known of it.
        request: the request.
        stack: takes what is to be undone when the request ends.
        model: that the request runs, for changes that let it read a token more than once: `hook`
            its forward pass.
        read: what went through it.
        start: columns of prompt and generated tokens before the call under way.
        prompt_states: keys and values of the prompt, where the cache drops some of them.
    """

    module: nn.Module
    traits: LayerTraits
    request: Request
    stack: ExitStack
    model: nn.Module
    read: ReadColumns
    start: int = 0
    prompt_states: tuple[Tensor, Tensor] | None = None

    def end_call(self, columns: int) -> None:
        """Count the columns of a call as cached."""
        self.read.end(self.start + columns)

    @property
    def rotary(self) -> RotaryCall | None:
        """The rotary call of the pass under way; ``None`` in a layer without rotary embedding."""
        if not self.traits.uses_rope:
            return None
        call = self.request.tables.of(self.traits.layer_type)
        if call is None:
            raise RuntimeError(
                f"layer {self.traits.layer} was given rotary tables by no rotary module"
            )
        return call

    @staticmethod
    def table_reach(positions: int) -> int:
        """Positions that rotary tables are made for which have to reach so many."""
        return -(-positions // TABLE_STEP) * TABLE_STEP

    def angles(self, positions: int) -> RotaryAngles | None:
        """Rotary tables by position, for kernels that rotate; ``None`` without rotary embedding.

        Made with room for generated tokens, once per request for all layers like this one.

        Args:
            positions: the least that they reach.
        """
        import torch

        from rag_middle.ops.prompt_kernels import RotaryAngles

        rotary, style = self.rotary, self.traits.rotary
        if rotary is None or style is None:
            return None
        reach = self.table_reach(positions)

        def make() -> RotaryAngles:
            tables = rotary.pairs_at(torch.arange(reach, device=rotary.x.device)[None], style)
            cos, sin = (x[0].float().contiguous() for x in tables)
            return RotaryAngles(cos, sin, style)

        key = ("angles", id(rotary.module), rotary.extra, style, reach)
        return self.request.shared(key, make)

    def score_rule(self, tokens: int) -> ScoreRule:
        """From dot products to scores; a window that holds all `tokens` is left out."""
        from rag_middle.ops.scores import ScoreRule

        window = self.traits.sliding_window
        return ScoreRule(
            scale=self.traits.score_scale,
            softcap=self.traits.softcap,
            window=window if window is not None and window < tokens else None,
        )

    def layer_stack(self, name: Hashable, device: torch.device) -> LayerStack:
        """The request's stack of this name for all layers like this one, on one device."""
        from rag_middle.attention.rotary import LayerStack

        traits, rotary = self.traits, self.rotary
        rotation = None if rotary is None else (id(rotary.module), rotary.extra)
        heads = (traits.heads, traits.kv_heads, traits.head_size)
        alike = (name, rotation, heads, traits.rotary, device)
        return self.request.shared(alike, LayerStack)

    def normalised(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated queries and keys as the model's norms after the rotation make them."""
        names = self.traits.norms_after_rope
        if not names:
            return query, key
        query_norm, key_norm = (self.module.get_submodule(name) for name in names)
        return query_norm(query), key_norm(key)

    def hook(
        self, register: Callable[..., Any], function: Callable[..., Any], **options: Any
    ) -> None:
        """Register a hook of PyTorch for the length of the request, in its thread only."""
        from rag_middle.attention.seam import MethodHook

        self.stack.callback(register(MethodHook(function, self.module), **options).remove)


@dataclass(slots=True)
class AttentionContext:
    """One attention call of a layer, on its way through the handlers.

    Attributes:
        layer: the layer.
        call: query, key, value, mask and options; handlers may replace them.
        cache: takes the call's keys and values, once (`store`).
        arguments: of the module, by name, position embeddings in force among them.
        attention: how queries attend to what is stored; a handler may put its own in its place.
    """

    layer: Layer
    call: AttentionCall
    cache: CacheTap
    arguments: dict[str, Any]
    attention: ModelAttention
    _rest: Iterator[LayerHandler] = field(default_factory=lambda: iter(()))

    @property
    def start(self) -> int:
        """Columns of prompt and generated tokens before the call."""
        return self.layer.start

    @property
    def stop(self) -> int:
        """Columns up to the end of the call."""
        return self.layer.start + self.call.query.shape[2]

    @property
    def in_prompt(self) -> bool:
        """Whether the call begins within the prompt, padding included."""
        return self.layer.start < self.layer.request.width

    def store(self) -> None:
        """Put the call's keys and values into the cache; the call then has all there are."""
        self.call.key, self.call.value = self.cache.store(self.call.key, self.call.value)

    def store_prompt(self, keys: Tensor) -> None:
        """Put the whole prompt into the cache, for tokens that will attend to all of it.

        Args:
            keys: `[b, g, n, d]`, as they are to be cached.

        Raises:
            UnsupportedGenerationError: a static cache, which drops what leaves a sliding window.
        """
        from transformers import StaticCache

        windowed = self.layer.traits.sliding_window is not None
        if windowed and isinstance(self.cache.cache, StaticCache):
            raise UnsupportedGenerationError(
                "Generated tokens need all documents in the cache, and a static cache of a "
                "sliding-window layer drops them. Use cache_implementation='dynamic'."
            )
        self.cache.store(keys, self.call.value)
        if windowed and self.cache.cache is not None:  # any such cache drops columns
            self.layer.prompt_states = (keys, self.call.value)

    def store_generated(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Put generated tokens into the cache, after a prompt from `store_prompt`.

        Args:
            keys: `[b, g, m, d]`, as they are to be cached.

        Returns:
            Keys and values of all columns.
        """
        from rag_middle.attention.request import restored_columns

        keys, values = self.cache.store(keys, self.call.value)
        if self.layer.prompt_states is not None:
            keys = restored_columns(self.layer.prompt_states[0], keys, self.stop)
            values = restored_columns(self.layer.prompt_states[1], values, self.stop)
        return keys[:, :, : self.stop], values[:, :, : self.stop]

    def proceed(self) -> tuple[Tensor, Tensor | None]:
        """What the handlers after this one, and then the model, make of the call."""
        handler = next(self._rest, None)
        if handler is not None:
            return handler.attend(self)
        self.store()
        return self.attention.attend(self.call)
