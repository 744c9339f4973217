"""LangChain's own unit tests of chat models."""

from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_tests.unit_tests import ChatModelUnitTests

from langchain_rag_middle import ChatRagMiddle


# The suite passes what services know: timeout, max_retries, api_key.
@pytest.mark.filterwarnings("ignore::langchain_rag_middle.IgnoredArgumentWarning")
class TestChatRagMiddleStandard(ChatModelUnitTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatRagMiddle

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "some/model"}  # nothing is loaded

    @property
    def has_tool_calling(self) -> bool:
        return False

    @property
    def has_structured_output(self) -> bool:
        return False
