"""Models whose answers are known: right or wrong by the position of the gold document."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from rag_middle.documents import ContextPrompt
from rag_middle.evaluation import Item, Task
from rag_middle.generation import Generation, RagMiddleModel, Score, Timings, Usage
from rag_middle.methods import resolve_method

#: Method name, 0-based position of the gold document or None without it, number of documents ->
#: probability of a right answer.
Chance = Callable[[str, int | None, int], float]


class FakeReader(RagMiddleModel):
    """Answers the questions of a task with the probability that `chance` gives.

    Whether an answer is right depends on question, method and probability alone: asked again, the
    answer is the same. `asked` counts the prompts.
    """

    def __init__(self, like: RagMiddleModel, items: Sequence[Item], chance: Chance) -> None:
        super().__init__(like.model, like.tokenizer)
        self._items = {item.question: item for item in items}
        self._chance = chance
        self.asked = 0

    def batch(self, prompts: Any, *, method: Any = None, **options: Any) -> list[Generation]:
        return [self._answer(prompt, resolve_method(method or "none").name) for prompt in prompts]

    def score_batch(
        self, prompts: Any, continuations: Any, *, method: Any = None, **options: Any
    ) -> list[Score]:
        """Every continuation is as likely as the others, under any method."""
        chosen = resolve_method(method or "none")
        score = Score(
            token_ids=(1,),
            log_probabilities=(-2.0,),
            is_greedy=False,
            prompt_tokens=10,
            method=chosen.name,
            applied=not chosen.is_neutral,
        )
        return [score] * len(prompts)

    def answer(self, prompt: ContextPrompt, method: str) -> str:
        """What it says."""
        [item] = [item for q, item in self._items.items() if q in prompt.suffix]
        documents = prompt.documents
        position = documents.index(item.gold) if item.gold in documents else None
        chance = self._chance(method, position, len(documents))
        # One draw per question and method: chances that do not differ give the same answers.
        drawn = hashlib.sha256(f"{item.question} {method}".encode()).digest()
        right = int.from_bytes(drawn[:4], "big") / 2**32 < chance
        return item.answers[0] if right else "no idea"

    def _answer(self, prompt: ContextPrompt, method: str) -> Generation:
        self.asked += 1
        return Generation(
            text=self.answer(prompt, method),
            token_ids=(1,),
            finish_reason="stop",
            stop=None,
            usage=Usage(prompt_tokens=10, completion_tokens=1),
            timings=Timings(tokenize=0, wait=0, prefill=0.1, decode=0),
            method=method,
            applied=True,
            documents=len(prompt.documents),
            document_ids=tuple(d.id for d in prompt.documents),
            dropped_documents=(),
            seed=None,
        )


def fake_reader(like: RagMiddleModel, task: Task, chance: Chance, limit: int = 200) -> FakeReader:
    """A fake that knows the first `limit` questions of `task`, drawn with seed 0."""
    return FakeReader(like, task.items(limit, 0), chance)
