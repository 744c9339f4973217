"""Token ids of a prompt and where its documents lie in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING

from rag_middle.errors import PromptError
from rag_middle.layout import PromptLayout

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedPrompt:
    """One prompt in tokens.

    Attributes:
        input_ids: ``l`` token ids, without padding.
        layout: the span of each document in them.
        document_ids: ``Document.id`` of each document, in prompt order.
        scores: how relevant each document is, higher is better, in prompt order; ``None`` where
            nobody said. Encoding takes them from ``Document.metadata["score"]``.
        shows_tools: whether it tells the model of tools.

    Raises:
        PromptError: the ids, the layout and the documents do not fit each other.
    """

    input_ids: tuple[int, ...]
    layout: PromptLayout
    document_ids: tuple[str | None, ...] = ()
    scores: tuple[float, ...] | None = None
    shows_tools: bool = False

    def __post_init__(self) -> None:
        expected = self.layout.length, len(self.layout.documents), len(self.layout.documents)
        scores = self.layout.documents if self.scores is None else self.scores
        sizes = len(self.input_ids), len(self.document_ids), len(scores)
        if sizes != expected:
            raise PromptError(
                "The layout asks for {} input_ids, {} document_ids and {} scores, got {}, {} and "
                "{}: give one of the latter two for each document.".format(*expected, *sizes)
            )

    @classmethod
    def assembled(
        cls,
        *,
        prefix: Sequence[int],
        documents: Sequence[Sequence[int]],
        suffix: Sequence[int],
        document_ids: Sequence[str | None],
        scores: Sequence[float] | None = None,
        shows_tools: bool = False,
    ) -> TokenizedPrompt:
        """Put the ids of prefix, documents and suffix one after the other.

        Raises:
            PromptError: there is no token at all.
        """
        input_ids = tuple(chain(prefix, *documents, suffix))
        ends = accumulate(map(len, documents), initial=len(prefix))
        layout = PromptLayout(length=len(input_ids), documents=tuple(pairwise(ends)))
        return cls(
            input_ids=input_ids,
            layout=layout,
            document_ids=tuple(document_ids),
            scores=None if scores is None else tuple(scores),
            shows_tools=shows_tools,
        )

    def __len__(self) -> int:
        """Tokens of the prompt (``l``)."""
        return len(self.input_ids)

    @property
    def prefix_ids(self) -> tuple[int, ...]:
        """Ids before the first document; all of them where there are no documents."""
        return self.input_ids[: self.layout.prefix_tokens]

    @property
    def documents_ids(self) -> tuple[tuple[int, ...], ...]:
        """Ids of each document, its separator included."""
        return tuple(self.input_ids[start:end] for start, end in self.layout.documents)

    @property
    def suffix_ids(self) -> tuple[int, ...]:
        """Ids after the last document."""
        return self.input_ids[self.layout.suffix_start :]

    def select(self, order: Iterable[int]) -> TokenizedPrompt:
        """The same prompt with document ``order[i]`` at position ``i``, others left out.

        Equal to encoding the prompt with those documents, because a document's tokens do not
        depend on its position. ``order`` is 0-based.

        Raises:
            PromptError: ``order`` names a document twice, or one that does not exist.
        """
        indices = tuple(order)
        count = len(self.layout.documents)
        if len(set(indices)) != len(indices) or not all(0 <= index < count for index in indices):
            raise PromptError(
                f"order must name some of the {count} documents, each once and 0-based, "
                f"got {list(indices)}."
            )
        documents = self.documents_ids
        return TokenizedPrompt.assembled(
            prefix=self.prefix_ids,
            documents=[documents[index] for index in indices],
            suffix=self.suffix_ids,
            document_ids=[self.document_ids[index] for index in indices],
            scores=None if self.scores is None else [self.scores[index] for index in indices],
            shows_tools=self.shows_tools,
        )


def padded(
    prompts: Sequence[TokenizedPrompt], pad_token_id: int, device: torch.device | str | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask of at least one prompt, both int64 ``[b, n]``.

    Shorter prompts are padded on the left, with mask 0.
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence

    ids = [torch.tensor(p.input_ids, dtype=torch.long, device="cpu") for p in prompts]
    padded_ids, mask = (
        pad_sequence(rows, batch_first=True, padding_value=value, padding_side="left").to(device)
        for rows, value in ((ids, pad_token_id), ([*map(torch.ones_like, ids)], 0))
    )
    return padded_ids, mask
