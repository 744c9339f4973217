"""LangChain's own integration tests of chat models, on a tiny local model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core._api import LangChainBetaWarning
from langchain_core.language_models import BaseChatModel
from langchain_tests.integration_tests import ChatModelIntegrationTests

from langchain_rag_middle import ChatRagMiddle, IgnoredArgumentWarning

pytestmark = pytest.mark.anyio


@pytest.mark.filterwarnings(
    # The suite passes what services know: timeout, max_retries.
    f"ignore::{IgnoredArgumentWarning.__module__}.{IgnoredArgumentWarning.__name__}",
    f"ignore::{LangChainBetaWarning.__module__}.{LangChainBetaWarning.__name__}",
)
class TestChatRagMiddleStandard(ChatModelIntegrationTests):
    folder: Path

    @pytest.fixture(autouse=True)
    def _folder(self, tiny_folder: Path) -> None:
        self.folder = tiny_folder

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatRagMiddle

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": str(self.folder)}

    @property
    def has_tool_calling(self) -> bool:
        return False

    @property
    def has_structured_output(self) -> bool:
        return False

    @property
    def supports_json_mode(self) -> bool:
        return False

    @property
    def supports_model_override(self) -> bool:
        return False  # weights do not change from call to call: that is refused
