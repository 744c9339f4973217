"""What a method asks of the attention layers: changes by layer, no tensors of a request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from rag_middle.attention.change import ASPECTS, LayerChange
from rag_middle.errors import IncompatibleMethodsError, MethodConfigError
from rag_middle.layout import PromptLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPlan:
    """Changes by layer index; layers not named run as the model runs them."""

    layers: Mapping[int, tuple[LayerChange, ...]] = field(default_factory=dict)

    @classmethod
    def uniform(cls, layers: Iterable[int], change: LayerChange) -> AttentionPlan:
        """The same change in each of `layers`."""
        return cls(layers=dict.fromkeys(layers, (change,)))

    @classmethod
    def by_layer(cls, layers: Iterable[int], change: Callable[[int], LayerChange]) -> AttentionPlan:
        """The change that `change` returns for each of `layers`."""
        return cls(layers={layer: (change(layer),) for layer in layers})

    @property
    def changes(self) -> tuple[LayerChange, ...]:
        """Those of all layers."""
        return tuple(change for changes in self.layers.values() for change in changes)

    def merge(self, other: AttentionPlan) -> AttentionPlan:
        """Both plans together.

        Raises:
            IncompatibleMethodsError: two changes of a layer claim the same.
        """
        merged = dict(self.layers)
        for layer, theirs in other.layers.items():
            ours = merged.get(layer, ())
            clash = _claims(ours) & _claims(theirs)
            if clash:
                raise IncompatibleMethodsError(
                    f"Two methods both decide the {' and '.join(sorted(clash))} of layer {layer}. "
                    "Compose methods that decide different things, or give them disjoint layers."
                )
            merged[layer] = tuple(in_order((*ours, *theirs)))
        return AttentionPlan(layers=merged)

    def check(self, num_layers: int, layouts: tuple[PromptLayout, ...]) -> None:
        """Raise `MethodConfigError` where the plan names layers or documents that do not exist."""
        outside = sorted(layer for layer in self.layers if not 0 <= layer < num_layers)
        if outside:
            raise MethodConfigError(
                f"Layers {outside} do not exist: the model has layers 0 to {num_layers - 1}."
            )
        for change in self.changes:
            change.check(layouts)


def _claims(changes: Iterable[LayerChange]) -> frozenset[str]:
    return frozenset[str]().union(*(change.claims for change in changes))


def in_order(changes: Iterable[LayerChange]) -> list[LayerChange]:
    """Changes in the order in which what they decide happens."""
    return sorted(changes, key=lambda change: min(map(ASPECTS.index, change.claims)))
