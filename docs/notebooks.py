"""Execute the tutorials and save them with their outputs.

    python docs/notebooks.py                        all of them
    python docs/notebooks.py examples/NAME.ipynb    some

They run offline, with the default model. What depends on a machine or a run is not saved.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_output

__all__ = ["TUTORIALS", "executed"]

ROOT = Path(__file__).resolve().parent.parent
TUTORIALS = sorted((ROOT / "examples").glob("*.ipynb"))


def executed(path: Path) -> NotebookNode:
    """A notebook as it comes out of a fresh kernel.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raised an exception.
    """
    # The same tags around documents in every run, and nothing from the network.
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "RAG_MIDDLE_MARKER_KEY": "a key for the tutorials only, 32+",
    }
    notebook: NotebookNode = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=600, kernel_name="python3", record_timing=False)
    # `execute` leaves its event loop open
    asyncio.run(client.async_execute(env=environment))
    notebook.metadata = {  # without the version of Python
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        printed = "".join(o.text for o in cell.outputs if o.get("name") == "stdout")
        shown = [o for o in cell.outputs if o.output_type != "stream"]  # not: progress bars
        cell.outputs = [new_output("stream", text=printed)] * bool(printed) + shown
    return notebook


if __name__ == "__main__":
    for path in [Path(name) for name in sys.argv[1:]] or TUTORIALS:
        nbformat.write(executed(path), path)
        print(f"executed {path.name}")
