"""Documents beside the gold one, by kind: what makes a distractor distracting."""

from __future__ import annotations

import random
from typing import Literal, get_args

from rag_middle.reader.facts import Entry, Fact, draw_entries
from rag_middle.reader.names import Split

__all__ = ["DISTRACTORS", "Distractors", "draw_documents"]

#: ``"same_relation"``: they state the same attribute of other things; ``"random"``: whatever of
#: whatever; ``"similar_names"``: the same attribute of things that share the last word of the name;
#: ``"near_duplicates"``: the gold document word by word, except for the first word of the name and
#: the value; ``"contradicting"``: as ``"same_relation"``, and the first of them states another
#: value of the very thing that is asked for. It comes first among the others.
Distractors = Literal[
    "same_relation", "random", "similar_names", "near_duplicates", "contradicting"
]
DISTRACTORS: tuple[Distractors, ...] = get_args(Distractors)


def draw_documents(
    rng: random.Random, split: Split, count: int, distractors: Distractors, *, facts: int = 1
) -> list[Entry]:
    """The gold document, then the others.

    Args:
        count: how many documents, the gold one included.
        facts: that a document states; the first one shared with the gold document's is asked for.

    Raises:
        EvaluationConfigError: `count` is more than there are names for.
    """
    similar = distractors in ("similar_names", "near_duplicates")
    entries = draw_entries(
        rng,
        split,
        count,
        facts_each=(facts,),
        same_attribute=distractors != "random",
        namesakes=count - 1 if similar else 0,
    )
    gold = entries[0]
    if distractors == "near_duplicates":
        entries[1:] = [_with_other_values(rng, split, gold, entry.title) for entry in entries[1:]]
    if distractors == "contradicting":
        entries[1] = _with_other_values(rng, split, gold, gold.title)
    return entries


def _with_other_values(rng: random.Random, split: Split, gold: Entry, title: str) -> Entry:
    """The sentences of `gold` about the thing of that title, with other values."""
    facts, sentences = [], []
    for fact in gold.facts:
        value = fact.value
        while value == fact.value:
            value = fact.attribute.value(rng, split)
        facts.append(Fact(title, fact.attribute, value))
        stating = (
            form
            for form in fact.attribute.sentences
            if form.format(name=fact.title, value=fact.value) in gold.body
        )
        form = max(stating, key=len)  # some end as a shorter one does
        sentences.append(form.format(name=title, value=value))
    return Entry(title, gold.kind, tuple(facts), " ".join(sentences))
