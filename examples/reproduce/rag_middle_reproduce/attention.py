"""Where the last token of a prompt looks: attention to every document, by layer and head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from rag_middle.attention import in_eval_mode, locked, model_traits, use_kernels
from rag_middle.documents import ContextPrompt
from rag_middle.errors import ConfigError
from rag_middle.evaluation import AS_GIVEN, Bootstrap, Condition, LabelledMethod, position
from rag_middle.generation import RagMiddleModel
from rag_middle.generation.prompts import MethodLike
from rag_middle.layout import PromptLayout
from rag_middle.methods import Method, resolve_method
from rag_middle_reproduce.last_token import last_token_masses
from rag_middle_reproduce.tables import markdown_table
from rag_middle_reproduce.views import Asked, Shown, View

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = Literal["layers", "heads", "gold"]
Panels = Literal["layers", "heads"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentAttention:
    """Attention of the last token of prompts.

    Attributes:
        layers: 0-based; layers without softmax attention are not among them.
        heads: 0-based.
        by_prompt: mass of the prompt's first token (the usual attention sink), of the rest of the
            prefix, of each document in the prompt's own order, and of what follows the documents,
            `[prompts, layers, h, 2 + D + 1]`.
    """

    layers: tuple[int, ...]
    heads: tuple[int, ...]
    by_prompt: NDArray[np.float64]

    @property
    def documents(self) -> NDArray[np.float64]:
        """Mass of each document, averaged over prompts, `[layers, h, D]`."""
        mean: NDArray[np.float64] = self.by_prompt.mean(axis=0)
        return mean[:, :, 2:-1]

    def chosen(
        self, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None
    ) -> DocumentAttention:
        """Of these layers and heads those that there are; None for all of them.

        Raises:
            ConfigError: there is none of them.
        """
        rows = _indices("layer", layers, self.layers)
        columns = _indices("head", heads, self.heads)
        return DocumentAttention(
            layers=tuple(self.layers[row] for row in rows),
            heads=tuple(self.heads[column] for column in columns),
            by_prompt=self.by_prompt[:, rows][:, :, columns],
        )


def _indices(kind: str, wanted: Sequence[int] | None, there: Sequence[int]) -> list[int]:
    indices = [at for at, name in enumerate(there) if wanted is None or name in wanted]
    if not indices:
        raise ConfigError(
            f"Attention can be seen in {kind}s {there[0]} to {there[-1]}; got {wanted}."
        )
    return indices


def document_attention(
    model: RagMiddleModel,
    prompts: Sequence[ContextPrompt],
    *,
    method: MethodLike = "none",
    template: Any = "auto",
    per_token: bool = False,
) -> DocumentAttention:
    """Attention by layer, head and document.

    The masses of a head sum to one, except in layers with a learned sink and under methods that
    scale weights without normalising them again (SIW).

    Args:
        model: its own method is not used.
        prompts: with documents, the same number in each.
        method: that the model runs under; the unmodified model by default.
        template: as in generation.
        per_token: divide the mass of each document by the number of its tokens.

    Raises:
        ConfigError: a prompt has no documents, or another number of them than the first;
            or the method combines several forward passes.
        UnsupportedArchitectureError: the model's attention cannot be reached, or the model cannot
            take the method.
    """
    counts = {len(prompt.documents) for prompt in prompts}
    if len(counts) != 1 or 0 in counts:
        raise ConfigError(
            "An attention view needs documents in every prompt, the same number in each: pass "
            f"ContextPrompt(documents=[...]). Numbers of documents: {sorted(counts)}."
        )
    chosen = resolve_method(method)
    if chosen.combines:
        raise ConfigError(
            f"{chosen.name} combines several forward passes, each with attention of its own: look "
            "at the model under one of them."
        )
    masses = np.stack([_masses(model, p, chosen, template, per_token) for p in prompts])
    return DocumentAttention(
        layers=tuple(sorted(model_traits(model.model).layers)),
        heads=tuple(range(masses.shape[2])),
        by_prompt=masses,
    )


def _masses(
    model: RagMiddleModel, prompt: ContextPrompt, method: Method, template: Any, per_token: bool
) -> NDArray[np.float64]:
    tokens = model.encode(prompt, method="none", template=template)
    names = tokens.document_ids
    if None in names or len(set(names)) < len(names):
        names = tuple(map(str, range(len(names))))
    tokens = model.encode(replace(tokens, document_ids=names), method=method)
    network = model.model
    segments = _segments(tokens.layout)
    with locked(network), in_eval_mode(network), use_kernels(model.kernels):
        masses = last_token_masses(network, method, tokens, segments).double()
    if per_token:
        masses[:, :, 2:-1] /= segments.sum(0)[2:-1].clamp(min=1)
    # A method may have put the documents into another order.
    order = [2 + tokens.document_ids.index(name) for name in names]
    in_order: NDArray[np.float64] = masses[:, :, [0, 1, *order, masses.shape[2] - 1]].numpy()
    return in_order


def _segments(layout: PromptLayout) -> torch.Tensor:
    """Which tokens belong to the first token, the prefix, each document, the suffix: `[l, S]`."""
    spans = ((0, 1), (1, layout.prefix_tokens), *layout.documents)
    segments = torch.zeros(layout.length, len(spans) + 1, device="cpu")
    for column, (start, end) in enumerate((*spans, (layout.suffix_start, layout.length))):
        segments[start:end, column] = 1
    return segments


@dataclass(frozen=True, kw_only=True)
class AttentionView(View):
    """What the last token gives to each document: a picture for each task and method.

    Attributes:
        show: a row for every layer (``"layers"``), head (``"heads"``) or position of the gold
            document (``"gold"``); a column for every document.
        layers: those of them that the model has; None for all. Where they are neither rows nor
            panels they are averaged, heads and positions of the gold document likewise.
        heads: likewise.
        panels: a picture of its own for every layer or head; heads are those of a layer each.
        per_token: mean over a document's tokens, in place of their sum.

    Raises:
        ConfigError: no such rows.
    """

    show: Rows = "layers"
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    panels: Panels | None = None
    per_token: bool = False

    def __post_init__(self) -> None:
        if self.show not in get_args(Rows):
            raise ConfigError(
                f"attention: show must be one of {', '.join(get_args(Rows))}, got {self.show!r}."
            )

    def tried_out(self) -> AttentionView:
        return replace(self, layers=(1, 2), heads=(0, 3))

    def shown(
        self, model: RagMiddleModel, asked: Sequence[Asked], methods: Sequence[LabelledMethod]
    ) -> Iterator[Shown]:
        """A picture for each task and method with the masses by layer and head; then what the
        methods change in the mass of each document, averaged over all that is shown."""
        for label, task, measurement in asked:
            items = task.items(measurement.limit, measurement.seed)
            golds = measurement.gold_positions(task)
            if self.show == "gold" and not golds:
                raise ConfigError(f"{label} has no gold documents to move.")
            conditions: list[Condition] = [position(gold) for gold in golds] or [AS_GIVEN]
            masses = dict[str, NDArray[np.float64]]()  # [prompts, D] of each method
            for method in methods:
                views = [
                    document_attention(
                        model,
                        [task.prompt(item, condition) for item in items],
                        method=method.method,
                        template=measurement.template,
                        per_token=self.per_token,
                    ).chosen(self.layers, self.heads)
                    for condition in conditions
                ]
                numbers = {
                    "task": label,
                    "method": method.label,
                    "prompts": len(items),
                    "layers": views[0].layers,
                    "heads": views[0].heads,
                    "documents": {
                        condition.name: view.documents.round(6).tolist()
                        for condition, view in zip(conditions, views, strict=True)
                    },
                }
                figure = self._figure(np.stack([v.documents for v in views]), views[0], golds)
                yield Shown(name=f"{label}--{method.label}", numbers=numbers, figure=figure)
                by_condition = [view.by_prompt[..., 2:-1].mean(axis=(1, 2)) for view in views]
                masses[method.label] = np.mean(by_condition, axis=0)
            if "none" in masses and len(masses) > 1:
                yield _changes(label, masses)

    def _figure(
        self, masses: NDArray[np.float64], view: DocumentAttention, golds: Sequence[int]
    ) -> Figure:
        """Of masses `[positions, layers, h, D]`."""
        titles = {"gold": "Position of the gold document", "layers": "Layer", "heads": "Head"}
        names = {"gold": golds, "layers": view.layers, "heads": view.heads}
        axes, panels = list(names), self.panels or ("layers" if self.show == "heads" else None)
        averaged = [axis for axis in axes if axis not in (self.show, panels)]
        shown = masses.mean(axis=tuple(map(axes.index, averaged)))
        headings = [""]
        if panels is None:
            shown = shown[None]
        else:
            headings = [f"{titles[panels]} {name}" for name in names[panels]]
            if axes.index(self.show) < axes.index(panels):
                shown = shown.swapaxes(0, 1)  # [panels, rows, D]
        return _heat_maps(shown, headings, titles[self.show], names[self.show])


def _changes(label: str, masses: dict[str, NDArray[np.float64]]) -> Shown:
    """What methods change in the masses `[prompts, D]` of documents, as a share of none's.

    Intervals are those of a paired bootstrap over prompts.
    """
    plain, rows, numbers = masses["none"], [], {}
    documents = plain.shape[1]
    for method, own in masses.items():
        if method == "none":
            continue
        bootstrap = Bootstrap(np.hstack([plain, own]))
        changes = [
            bootstrap.estimate(
                lambda means, d=d: means[..., documents + d] / means[..., d] - 1  # type: ignore[misc]
            )
            for d in range(documents)
        ]
        rows.append([method, *(change.text(share=True, signed=True) for change in changes)])
        numbers[method] = [[c.value, c.low, c.high] for c in changes]
    headers = ["% of none's mass", *(f"document {d + 1}" for d in range(documents))]
    return Shown(
        name=f"{label}--changes",
        numbers={"task": label, "prompts": len(plain), "changes": numbers},
        table=markdown_table(headers, rows),
    )


def _heat_maps(
    masses: NDArray[np.float64], titles: Sequence[str], row_title: str, names: Sequence[int]
) -> Figure:
    """Masses `[panels, rows, D]` as colours, in per cent; `names` are those of the rows."""
    from matplotlib.figure import Figure

    columns = min(len(titles), max(2, ceil(sqrt(len(titles)))))
    height = max(2.4, 0.12 * len(names) + 1.4)
    rows_of_panels = ceil(len(titles) / columns)
    figure = Figure(figsize=(6.4, height * rows_of_panels), layout="constrained")
    grid = figure.subplots(rows_of_panels, columns, squeeze=False).flatten()
    for axes, title, panel in zip(grid, titles, masses, strict=False):
        image = axes.imshow(
            100 * panel, aspect="auto", cmap="viridis", vmin=0, vmax=100 * masses.max()
        )
        axes.set_xticks(range(0, panel.shape[1], max(1, ceil(panel.shape[1] / 10))))
        rows = range(0, len(names), max(1, round(len(names) / 12)))
        axes.set_yticks(rows, [str(names[row]) for row in rows])
        axes.set_xlabel("Position of the document")
        axes.set_ylabel(row_title)
        axes.set_title(title, fontsize="medium")
    for axes in grid[len(titles) :]:
        axes.set_visible(False)
    figure.colorbar(image, ax=grid.tolist(), label="Attention of the last token, %")
    return figure
