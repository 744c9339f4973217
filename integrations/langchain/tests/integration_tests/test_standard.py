"""LangChain's own integration tests of chat models, on a tiny local model.

The model's template shows tools, and it complies through constrained decoding. `make test` runs
every eighth. What is skipped there, and why:

- images, audio, PDF files, Anthropic's image blocks: the models read text only.
- another model per call: weights do not change from call to call, that is refused.
- `test_stream_time`: it measures against recorded traffic of a service.
"""

from typing import Any

import pytest
from langchain_core._api import LangChainBetaWarning
from langchain_core.language_models import BaseChatModel
from langchain_tests.integration_tests import ChatModelIntegrationTests

from langchain_rag_middle import ChatRagMiddle, IgnoredArgumentWarning
from rag_middle import RagMiddleModel
from tests.scripted import prefer, write

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


#: What the model wants to write in tests that ask for more than a form.
WISHES = {
    "test_agent_loop": [hermes("get_weather", '{"location": "SF"}'), "Sunny."],
    "test_bind_runnables_as_tools": [hermes("greeting_generator", '{"answer_style": "pirate"}')],
    "test_unicode_tool_call_integration": [
        hermes("unicode_customer", f'{{"customer_name": "{name}", "description": ""}}')
        for name in ("你好啊集团", "こんにちは株式会社")
    ],
}


@pytest.mark.one_in(8)
@pytest.mark.filterwarnings(
    # The suite passes what services know: timeout, max_retries.
    f"ignore::{IgnoredArgumentWarning.__module__}.{IgnoredArgumentWarning.__name__}",
    f"ignore::{LangChainBetaWarning.__module__}.{LangChainBetaWarning.__name__}",
)
class TestToolsAndStructuredOutput(ChatModelIntegrationTests):
    """A model that writes the shortest JSON that constrained decoding lets it write."""

    local: RagMiddleModel

    @pytest.fixture(autouse=True)
    def _local(self, request: pytest.FixtureRequest, local: RagMiddleModel) -> None:
        self.local = local
        wishes = WISHES.get(request.node.originalname)
        if wishes is None:
            prefer(local, '"', "}", " 3", "3")  # of a string its end, of a number a 3
        else:
            write(local, *wishes)

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatRagMiddle

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": self.local, "max_tokens": 200}

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_model_override(self) -> bool:
        return False
