"""Methods of a configuration whose parameters are found in the loaded model.

::

    methods:
      - {fit: channel, factor: -1, layers: [10, 11, 12], without: smoothness, label: w/o smoothness}
      - {fit: initial_token, text: ":", label: colon}
      - {fit: gradient, label: by gradient}
      - {fit: random_factors, tried: 24, label: drawn}
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from rag_middle import ConfigError, RagMiddleModel
from rag_middle.attention import in_eval_mode
from rag_middle.calibration import (
    ChannelSearch,
    Example,
    ExampleObjective,
    draw_examples,
    mean_hidden_states,
    random_texts,
)
from rag_middle.evaluation import (
    Condition,
    Item,
    KeyValueRetrieval,
    Task,
    position,
    spread_positions,
)
from rag_middle.methods import LPES, SIW, Method, PositionalHiddenStates

_SEED = 1  # of what is fitted on: other questions than those of the measurement, whose seed is 0


@dataclass(frozen=True, kw_only=True)
class Fit(ABC):
    """What finds a method; the fields are those of its entry in a configuration."""

    label: str

    def tried_out(self) -> Fit:
        """The same, small enough for the default model of trials."""
        return self

    @abstractmethod
    def method(self, model: RagMiddleModel, task: Task) -> Method:
        """The method for a model, and for a task where that decides.

        Raises:
            ConfigError: none is found.
        """


def random_pairs(model: RagMiddleModel, *, texts: int, tokens: int) -> Tensor:
    """Texts of random strings that hidden states are averaged over, ids `[texts, tokens]`."""
    task = KeyValueRetrieval(keys=50)
    examples = [
        Example(question=item.id, position=0, prompt=task.prompt(item, position(0)), answer="")
        for item in task.items(20, 0)  # 1,000 strings
    ]
    tokens = min(tokens, model.context_window or tokens)
    return random_texts(model, examples, count=texts, tokens=tokens, seed=0)


@dataclass(frozen=True, kw_only=True)
class ChannelFit(Fit):
    """Positional hidden states by the search of arXiv:2406.02536 without one of its parts (A.2).

    Ten channels are chosen by statistics along random texts, and one of them by validation: the
    mean log-likelihood of the answer to key-value questions at five positions.

    Attributes:
        factor: of the channels.
        layers: 0-based, that are changed.
        without: ``"monotonicity"``: the ten smoothest; ``"smoothness"``: the ten that are monotone
            in most layers; ``"validation"``: the smoothest of these; None: the ten smoothest of
            those that are monotone in more than a quarter of the layers.
        channels: how many are scaled at once, the best ones.
        texts: that hidden states are averaged over, `tokens` each.
        questions: of the validation, of so many `pairs`.
    """

    factor: float
    layers: tuple[int, ...]
    without: Literal["monotonicity", "smoothness", "validation"] | None = None
    channels: int = 1
    texts: int = 250
    tokens: int = 1000
    questions: int = 100
    pairs: int = 50

    def tried_out(self) -> Fit:
        return replace(self, layers=(1, 2), texts=2, tokens=120, questions=1, pairs=3)

    def method(self, model: RagMiddleModel, task: Task) -> Method:
        hidden = mean_hidden_states(
            model, random_pairs(model, texts=self.texts, tokens=self.tokens)
        )
        ranked = list(self.candidates(hidden))
        if not ranked:
            raise ConfigError(
                f"No channel's mean drifts one way along {self.texts} texts of {self.tokens} "
                "tokens: read more texts, or longer ones."
            )
        if self.without != "validation":
            scores = {channel: self._likelihood(model, channel) for channel in ranked}
            ranked.sort(key=scores.__getitem__, reverse=True)
        return self._scaled(*ranked[: self.channels])

    def candidates(self, hidden: Tensor) -> tuple[int, ...]:
        """Ten channels of mean hidden states `[layers, n, hidden]`, the smoothest first."""
        ranked = ChannelSearch().ranked(hidden, monotone=self.without != "monotonicity")
        if self.without in ("smoothness", "validation"):
            ranked = tuple(sorted(ranked, key=lambda channel: -len(channel.layers)))
        ranked = tuple(sorted(ranked[:10], key=lambda channel: channel.smoothness))
        return tuple(channel.channel for channel in ranked)

    def _scaled(self, *channels: int) -> PositionalHiddenStates:
        return PositionalHiddenStates(channels=channels, factor=self.factor, layers=self.layers)

    def _likelihood(self, model: RagMiddleModel, channel: int) -> float:
        task = KeyValueRetrieval(keys=self.pairs)
        conditions = [position(at) for at in spread_positions(self.pairs, 5)]
        asked = [(i, c) for i in task.items(self.questions, _SEED) for c in conditions]
        scores = model.score_batch(
            [task.prompt(*pair) for pair in asked],
            [f" {task.target(*pair)}" for pair in asked],
            method=self._scaled(channel),
        )
        return sum(score.total for score in scores)


@dataclass(frozen=True, kw_only=True)
class InitialTokenFit(Fit):
    """SIW that scales the weight of another token than the first (arXiv:2512.13109, table 3).

    The first token of signs in the prompt with `text` among them; that this is what acts as the
    initial token, and not one put in front or all of its kind, is our reading. It must stand at the
    same place in all prompts, as it does in an instruction.
    """

    text: str

    def method(self, model: RagMiddleModel, task: Task) -> Method:
        prompts = [task.prompt(item, position(0)) for item in task.items(2, 0)]
        places = {self._place(model, model.encode(prompt).input_ids) for prompt in prompts}
        place = places.pop() if len(places) == 1 else None
        if place is None:
            raise ConfigError(
                f"{self.label}: {self.text!r} should be a token at one place in all prompts, and "
                "is not in two of them. Name another one."
            )
        return SIW(token=place)

    def _place(self, model: RagMiddleModel, ids: Sequence[int]) -> int | None:
        texts = (model.tokenizer.decode([token]) for token in ids)
        signs = (
            at
            for at, text in enumerate(texts)
            if self.text in text and not any(letter.isalnum() for letter in text)
        )
        return next(signs, None)


@dataclass(frozen=True, kw_only=True)
class FactorsByGradient(Fit):
    """LPES by gradient descent on the factors of the layers (arXiv:2606.27705, appendix C).

    The negative log-likelihood of the answer falls; the gold document stands at the begin, in the
    middle or at the end, drawn with the weights of the fitness.

    Attributes:
        samples: questions of an epoch, the last ones; the paper has 2,000 at each
            of the three positions.
        reported: first questions that are not trained on, at most half of all.
        batch_size: prompts per step.
        epochs: over them.
        learning_rate: of Adam.
    """

    WEIGHTS: ClassVar[tuple[float, ...]] = (0.2, 0.3, 0.5)

    samples: int = 2000
    reported: int = 500
    batch_size: int = 32
    epochs: int = 30
    learning_rate: float = 1e-5

    def tried_out(self) -> Fit:
        return replace(self, samples=2, batch_size=2, epochs=1)

    def method(self, model: RagMiddleModel, task: Task) -> Method:
        items = task.items(None if getattr(task, "data", None) else self.samples, _SEED)
        items = items[min(self.reported, len(items) // 2) :][-self.samples :]
        draw = torch.Generator().manual_seed(_SEED)
        golds, weights = spread_positions(task.num_positions, 3), torch.tensor(self.WEIGHTS)
        decoder = model.model.get_decoder()
        factors = torch.ones(len(decoder.layers), device=model.device, requires_grad=True)
        optimizer = torch.optim.Adam([factors], lr=self.learning_rate)
        hooks = [
            layer.register_forward_pre_hook(
                partial(_rotated, decoder.rotary_emb, factors, index), with_kwargs=True
            )
            for index, layer in enumerate(decoder.layers)
        ]
        try:
            with torch.enable_grad(), in_eval_mode(model.model):
                for _ in range(self.epochs):
                    for start in range(0, len(items), self.batch_size):
                        batch = items[start : start + self.batch_size]
                        drawn = torch.multinomial(weights, len(batch), True, generator=draw)
                        asked = zip(batch, [position(golds[at]) for at in drawn], strict=True)
                        losses = (_loss(model, task, *pair) for pair in asked)
                        gradients = [torch.autograd.grad(loss, factors)[0] for loss in losses]
                        factors.grad = torch.stack(gradients).mean(0)
                        optimizer.step()
        finally:
            for hook in hooks:
                hook.remove()
        return LPES(factors=tuple(factors.detach().tolist()))


@dataclass(frozen=True, kw_only=True)
class RandomFactors(Fit):
    """LPES with a factor per layer, each drawn alone: what a search without curves finds.

    The best of `tried` draws by what the search for a curve compares its candidates by, on its
    questions (`rag-middle calibrate --method lpes`), so that both have seen as much.

    Attributes:
        tried: draws, of the factors that control points may have.
        questions: of the search, `documents` each.
        held_out: that the search is checked on.
    """

    tried: int
    questions: int = 30
    held_out: int = 100
    documents: int | None = None

    def tried_out(self) -> Fit:
        return replace(self, tried=2, questions=3, held_out=2)

    def method(self, model: RagMiddleModel, task: Task) -> Method:
        if self.documents is not None:
            task = replace(task, documents=self.documents)  # type: ignore[call-arg]
        examples, _ = draw_examples(
            task,
            "lpes",
            questions=self.questions,
            held_out=self.held_out,
            chat=bool(model.tokenizer.chat_template),
        )
        fitness = ExampleObjective(model, examples, criterion="log_likelihood")
        rng, layers = random.Random(0), len(model.model.get_decoder().layers)
        drawn = [
            LPES(factors=tuple(rng.randint(10, 20) / 10 for _ in range(layers)))
            for _ in range(self.tried)
        ]
        return max(drawn, key=fitness)


def _rotated(
    rotary: Any, factors: Tensor, layer: int, _module: Any, args: Any, kwargs: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """A layer's arguments with the tables of positions that are divided by its factor."""
    cos, _ = kwargs["position_embeddings"]
    positions = torch.arange(cos.shape[1], device=cos.device) / factors[layer]
    angles = (positions[:, None] * rotary.inv_freq.to(cos.device)).repeat(1, 2)[None]
    scale = rotary.attention_scaling
    tables = tuple((f(angles) * scale).to(cos.dtype) for f in (torch.cos, torch.sin))
    return args, {**kwargs, "position_embeddings": tables}


def _loss(model: RagMiddleModel, task: Task, item: Item, condition: Condition) -> Tensor:
    """Negative log-likelihood of the answer to one prompt."""
    ids = list(model.encode(task.prompt(item, condition)).input_ids)
    answer = model.token_ids(f" {task.target(item, condition)}")
    tokens = torch.tensor([[*ids, *answer]], device=model.device)
    logits = model.model(tokens[:, :-1], use_cache=False).logits[0]
    steps = logits[len(ids) - 1 :].float().log_softmax(-1)
    loss: Tensor = -steps.gather(1, tokens[0, len(ids) :, None]).sum()
    return loss


#: By the value of `fit` in a configuration.
FITS: Mapping[str, type[Fit]] = {
    "channel": ChannelFit,
    "initial_token": InitialTokenFit,
    "gradient": FactorsByGradient,
    "random_factors": RandomFactors,
}
