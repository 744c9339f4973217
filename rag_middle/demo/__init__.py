"""The demonstration: what position bias is, and what a method does about it, on one machine.

::

    demonstration = demonstrate(method="pine")
    write_demonstration(demonstration, "out/")

Pages about invented things are indexed, questions answered from what retrieval finds, and accuracy
measured by the position of the page that answers. Needs ``pip install 'rag-middle[demo]'``.
"""

from rag_middle.demo.corpus import SavedCorpus, saved_corpus
from rag_middle.demo.demonstration import Demo, Demonstration, check_demo, demonstrate
from rag_middle.demo.examples import Example, Reply
from rag_middle.demo.page import DemoFiles, html_page, plot_demonstration, write_demonstration
from rag_middle.demo.wording import findings

__all__ = [
    "Demo",
    "DemoFiles",
    "Demonstration",
    "Example",
    "Reply",
    "SavedCorpus",
    "check_demo",
    "demonstrate",
    "findings",
    "html_page",
    "plot_demonstration",
    "saved_corpus",
    "write_demonstration",
]
