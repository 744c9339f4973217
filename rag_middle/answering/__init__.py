"""From a question to an answer with its sources: retrieval, prompt, and a model with a method.

::

    answerer = Answerer.over("docs/", method="pine")
    answer = answerer.ask("How is a method added?")
    print(answer.text, [source.path for source in answer.sources])

Retrieval needs ``pip install 'rag-middle[demo]'``.
"""

from rag_middle.answering.answerer import Answerer
from rag_middle.answering.results import Answer, AnswerStream, AnswerTimings, Source
from rag_middle.answering.template import DEFAULT_TEMPLATE, TEMPLATE_FILE, PromptTemplate
from rag_middle.options import AskKwargs

__all__ = [
    "DEFAULT_TEMPLATE",
    "TEMPLATE_FILE",
    "Answer",
    "AnswerStream",
    "AnswerTimings",
    "Answerer",
    "AskKwargs",
    "PromptTemplate",
    "Source",
]
