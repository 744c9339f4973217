"""Key-value pairs in the words of arXiv:2406.02536, appendix B; long prompts lose their middle."""

from __future__ import annotations

import random
import string
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from rag_middle import ContextPrompt, Document
from rag_middle.evaluation import Condition, Item, KeyValueRetrieval, arranged_documents
from rag_middle_reproduce.perturbations import GOLD
from rag_middle_reproduce.tasks.cutting import CutTask

_CHARACTERS = string.ascii_lowercase + string.digits


@dataclass(frozen=True, kw_only=True)
class JsonPairs(CutTask, KeyValueRetrieval):
    """Pairs of random strings of 20 characters, as the paper looks at attention.

    The prompt ends within the value that is asked for, so that its last token decides about it. The
    gold pair is marked by its id, for perturbations of it. With `data` pairs and prompt are those
    of the file's benchmark. Prompts that do not fit lose the pairs in their middle, the gold one
    too if it stands there.
    """

    name: ClassVar[str] = "json_pairs"
    title: ClassVar[str] = "Key-value pairs"

    def items(self, limit: int | None, seed: int) -> list[Item]:
        items = super().items(limit, seed)
        if self.data is not None:
            return [replace(item, gold=_marked(item.gold)) for item in items]
        return [
            self._renamed(item, random.Random(f"{self.name} {seed} {item.id}")) for item in items
        ]

    def _renamed(self, item: Item, draw: random.Random) -> Item:
        def text() -> str:
            size = min(20, self.identifier_characters)
            return "".join(draw.choices(_CHARACTERS, k=size))

        pairs = [(text(), text()) for _ in range(self.keys)]
        gold, *others = (Document(f'"{key}": "{value}"', id=key) for key, value in pairs)
        (key, value), *_ = pairs
        return replace(
            item, question=key, answers=(value,), gold=_marked(gold), others=tuple(others)
        )

    def prompt(self, item: Item, condition: Condition) -> ContextPrompt:
        if self.data is not None:
            return super().prompt(item, condition)
        return ContextPrompt(
            "Json data: {",
            arranged_documents(item, condition),
            f'}} The value of key "{item.question}" is "',
            separator=", ",
        )


def _marked(gold: Any) -> Document:
    marked: Document = replace(gold, id=GOLD)
    return marked
