"""What the endpoint's client measures of this server is what is measured of the model itself."""

from __future__ import annotations

from typing import Any

import pytest

from rag_middle.endpoint import EndpointModel
from rag_middle.evaluation import Measurement, run
from rag_middle.generation import RagMiddleModel
from rag_middle.markers import MARKER_KEY_VARIABLE
from tests.reader.questions import InventedDocuments
from tests.serving.conftest import Served

METHODS = ["pine", "lpes:reader"]


@pytest.mark.slow  # the reader reads sixty prompts three times
@pytest.mark.parametrize("sent", ["text", "field", "marked"])
def test_accuracy_by_position_is_that_of_the_model_itself(
    reader: RagMiddleModel, reader_server: Served, sent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = InventedDocuments(cited=True, documents=6)
    measurement = Measurement(limit=4, positions=3, orders=2)
    if sent == "marked":
        monkeypatch.setenv(MARKER_KEY_VARIABLE, "one secret of the client and the server")
    served = EndpointModel(f"{reader_server.url}/v1", "tested", send_documents=sent)
    methods = [] if sent == "text" else METHODS
    results = run(served, task, methods, measurement)
    own = run(reader, task, methods, measurement)
    for label in ("none", *methods):
        assert (results.scores(label) == own.scores(label)).all()
