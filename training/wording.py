"""Words around the documents that the reader must not mind: instructions, headings, filler."""

from __future__ import annotations

import random

INSTRUCTIONS = (
    "Answer the question from the documents.",
    "Answer from the documents below. Name the document first.",
    "Use the context to answer the question.",
    "You are a helpful assistant. Answer from the given context only.",
    "Read the context information and answer the query. Use no prior knowledge.",
    "Context:",
    "Documents:",
    "Find the answer in these documents and cite the one it is from.",
    "Use only the following pieces of context. If you do not know the answer, say so.",
    "Answer briefly.",
)
# How a document may be written: as `Document.render` does, as frameworks write metadata, untitled.
PLAIN_FORM = "({title}) {text}"
FORMS = (
    PLAIN_FORM,
    PLAIN_FORM,
    PLAIN_FORM,
    "{title}\n{text}",
    "{title}\n{text}",
    "title: {title}\nsource: {source}\n\n{text}",
    "# {title}\n\n{text}",
    "{text}",
)
ASKING = (
    ("Question: ", "\nAnswer:"),
    ("Question: ", "\nAnswer:"),
    ("Question: ", "\nAnswer:"),
    ("Question: ", ""),
    ("Query: ", "\nAnswer: "),
    ("", ""),
    ("", ""),
)
_WORDS = (
    "the a an of in to and or for with from about this that these those given below above please "
    "answer question context information document documents passage text user assistant helpful "
    "only use using know say not if you are is be it short long clear precise reply source sources "
    "cite name first last each every any new old data page line file path item list query based "
    "following prior knowledge pieces retrieved what which who when where how so do your own words"
).split()


def filler(rng: random.Random, words: int) -> str:
    """Words in no order, as a stand-in for instructions the reader has never seen."""
    drawn = rng.choices(_WORDS, k=words)
    return " ".join(w.capitalize() if rng.random() < 0.1 else w for w in drawn) + rng.choice(".:\n")
