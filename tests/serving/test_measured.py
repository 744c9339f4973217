"""What the endpoint's client measures of this server is what is measured of the model itself."""

from __future__ import annotations

import pytest

from rag_middle.endpoint import EndpointModel
from rag_middle.evaluation import Measurement, run
from rag_middle.generation import RagMiddleModel
from tests.reader.questions import InventedDocuments
from tests.serving.conftest import Served


@pytest.mark.slow  # the reader reads sixty prompts
@pytest.mark.parametrize("method", ["none", "pine", "lpes:reader"])
def test_accuracy_by_position_is_that_of_the_model_itself(
    reader: RagMiddleModel, reader_server: Served, method: str
) -> None:
    task = InventedDocuments(cited=True, documents=6)
    measurement = Measurement(limit=4, positions=3, orders=2)
    served = EndpointModel(f"{reader_server.url}/v1", "tested", extra_body={"method": method})
    results = run(served, task, [], measurement)
    own = run(reader, task, [method], measurement)
    assert (results.scores("none") == own.scores(method)).all()
