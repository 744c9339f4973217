"""The demonstration: real questions about real passages, and what position does to the answers.

::

    demo = Demo(method="pine")
    shown = {"examples": list(demo.examples()), "measured": demo.measure(), "full": None}
    write_demonstration(shown, "out/")

Needs ``pip install 'rag-middle[demo]'``.
"""

from rag_middle.demo.demonstration import Demo, full_measurement
from rag_middle.demo.page import picture, write_demonstration

__all__ = ["Demo", "full_measurement", "picture", "write_demonstration"]
