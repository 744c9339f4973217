"""Objects of a class as answers: calls of a tool where the model calls tools, else JSON in text."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from llama_index.core.bridge.pydantic import BaseModel
from llama_index.core.prompts import PromptTemplate
from llama_index.core.types import PydanticProgramMode
from llama_index.llms.rag_middle.tools import ToolCalling


class StructuredOutput(ToolCalling):
    """What `RagMiddleLLM` knows of answers that are objects of a class.

    LlamaIndex's programs ask for them; constrained decoding, where it is installed, makes sure that
    what the model writes is one.
    """

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)  # for type checkers, who see no fields of a subclass

    def structured_predict(
        self,
        output_cls: type[BaseModel],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> BaseModel:
        """An object of a class."""
        options = self._of_form(output_cls, llm_kwargs)
        made: BaseModel = super().structured_predict(output_cls, prompt, options, **prompt_args)
        return made

    async def astructured_predict(
        self,
        output_cls: type[BaseModel],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> BaseModel:
        """As `structured_predict`, without blocking the event loop."""
        options = self._of_form(output_cls, llm_kwargs)
        made: BaseModel = await super().astructured_predict(
            output_cls, prompt, options, **prompt_args
        )
        return made

    def _of_form(
        self, output_cls: type[BaseModel], options: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Options of a call whose answer is JSON of a class, unless it is the call of a tool."""
        mode = self.pydantic_program_mode
        in_text = mode == PydanticProgramMode.LLM or (
            mode == PydanticProgramMode.DEFAULT and not self.metadata.is_function_calling_model
        )
        if not in_text or find_spec("llguidance") is None:
            return dict(options or {})
        named = {"name": output_cls.__name__, "schema": output_cls.model_json_schema()}
        form = {"type": "json_schema", "json_schema": named}
        return {"response_format": form, **(options or {})}
