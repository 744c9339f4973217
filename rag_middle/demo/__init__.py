"""The demonstration: what position bias is, and what a method does about it, on one machine.

::

    shown = demonstrate(method="pine")
    write_demonstration(shown, "out/")

Pages about invented things are indexed, questions answered from what retrieval finds, and accuracy
measured by the place of the page that answers. Needs ``pip install 'rag-middle[demo]'``.
"""

from rag_middle.demo.corpus import SavedCorpus, saved_corpus
from rag_middle.demo.demonstration import Demonstration
from rag_middle.demo.examples import Example, Reply
from rag_middle.demo.files import DemoFiles
from rag_middle.demo.page import html_page, write_demonstration
from rag_middle.demo.picture import draw_curves
from rag_middle.demo.steps import Demo, demonstrate
from rag_middle.demo.wording import findings

__all__ = [
    "Demo",
    "DemoFiles",
    "Demonstration",
    "Example",
    "Reply",
    "SavedCorpus",
    "demonstrate",
    "draw_curves",
    "findings",
    "html_page",
    "saved_corpus",
    "write_demonstration",
]
