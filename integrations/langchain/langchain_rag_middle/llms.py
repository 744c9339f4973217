"""RagMiddleLLM: a local model that completes text with marked documents under a method."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseLLM
from langchain_core.outputs import Generation as TextGeneration
from langchain_core.outputs import GenerationChunk, LLMResult

from langchain_rag_middle.arguments import OPTIONS, renamed
from langchain_rag_middle.documents import as_document
from langchain_rag_middle.responses import answers, streamed, token_usage, usage
from langchain_rag_middle.settings import RagMiddleSettings
from rag_middle import Document as PromptDocument
from rag_middle import UnsupportedGenerationError
from rag_middle.integration import in_thread, pieces_in_thread, split_call

if TYPE_CHECKING:
    from rag_middle import Generation


class RagMiddleLLM(RagMiddleSettings, BaseLLM):
    """A local Hugging Face decoder that takes text and gives text.

    ::

        llm = RagMiddleLLM(model="Qwen/Qwen2.5-7B-Instruct", method="pine")
        llm.invoke(f"{format_docs(documents)}\\n\\nQuestion: Why?")

    Documents are those that `DocumentPrompt`, `format_docs` or `MarkDocuments` has marked in the
    text. The text becomes a message of the user where the tokenizer has a chat template
    (``template="raw"`` for none). LangChain joins messages into one (``Human: ...``). ``generate``
    tells usage, finish reason and ``generation_info["rag_middle"]`` for each prompt; its prompts
    share forward passes.

    The arguments are the attributes of `RagMiddleSettings`, and:

    Attributes:
        system: a system message before every prompt.
        allow_control_tokens: with ``template="raw"``: recognise control tokens outside documents.
    """

    system: str | None = None
    allow_control_tokens: bool = False

    @property
    def _llm_type(self) -> str:
        return "rag-middle"

    @property
    def _identifying_params(self) -> Mapping[str, Any]:
        own = {"system": self.system, "allow_control_tokens": self.allow_control_tokens}
        return {**super()._identifying_params, **own}

    def _more_options(self, call: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: getattr(self, name) if call.get(name) is None else call[name]
            for name in self._call_names
        }

    @property
    def _call_names(self) -> tuple[str, ...]:
        return ("system", "allow_control_tokens")

    # -- calls --------------------------------------------------------------------------------

    def generate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        callbacks: Any = None,
        **kwargs: Any,
    ) -> LLMResult:
        """Completions of several prompts.

        LangChain looks LLMs up in caches without the options of a call. Calls with options are
        therefore those of a copy that has them for its own.
        """
        llm, rest = self._with_call_options(kwargs)
        return super(RagMiddleLLM, llm).generate(prompts, stop, callbacks, **rest)

    async def agenerate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        callbacks: Any = None,
        **kwargs: Any,
    ) -> LLMResult:
        """As `generate`, without blocking the event loop."""
        llm, rest = self._with_call_options(kwargs)
        return await super(RagMiddleLLM, llm).agenerate(prompts, stop, callbacks, **rest)

    def _generate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        return self._run(prompts, self._options(stop, kwargs))

    async def _agenerate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        options = self._options(stop, kwargs)

        def call(cancel: threading.Event) -> LLMResult:
            return self._run(prompts, {**options, "cancel": cancel})

        return await in_thread(call)

    def _stream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[GenerationChunk]:
        for chunk in self._chunks(prompt, self._options(stop, kwargs)):
            if run_manager:
                run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk

    async def _astream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[GenerationChunk]:
        cancel = threading.Event()
        options = {**self._options(stop, kwargs), "cancel": cancel}
        async for chunk in pieces_in_thread(self._chunks(prompt, options), cancel):
            if run_manager:
                await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk

    # -- how ----------------------------------------------------------------------------------

    def _with_call_options(self, call: Mapping[str, Any]) -> tuple[RagMiddleLLM, dict[str, Any]]:
        """A model whose own options are those of the call, and what LangChain added to it."""
        of_langchain = ("tags", "metadata", "run_name", "run_id")
        rest = {name: call[name] for name in of_langchain if name in call}
        options = _options_of({name: call[name] for name in call if name not in rest})
        if not options:
            return self, rest
        method = self._options(None, options)["method"]
        names = {*OPTIONS, "n", *self._call_names}
        changed = {
            name: value
            for name, value in renamed(options).items()
            if name in names and value is not None
        }
        return self.model_copy(update={**changed, "method": method}), rest

    def _options(self, stop: list[str] | None, call: Mapping[str, Any]) -> dict[str, Any]:
        return super()._options(stop, _options_of(call))

    def _run(self, prompts: Sequence[str], options: dict[str, Any]) -> LLMResult:
        size = self.max_batch_size
        generations = answers(self.rag_middle_model, prompts, options, max_batch_size=size)
        return LLMResult(
            generations=[
                [TextGeneration(text=text.text, generation_info=self._info(text)) for text in texts]
                for texts in generations
            ],
            llm_output={"token_usage": token_usage(generations), "model_name": self.model_name},
        )

    def _chunks(
        self, prompt: str, options: dict[str, Any]
    ) -> Generator[GenerationChunk, None, None]:
        def piece(text: str) -> GenerationChunk:
            return GenerationChunk(text=text)

        yield from streamed(self.rag_middle_model, prompt, options, piece, self._last_chunk)

    def _last_chunk(self, generation: Generation) -> GenerationChunk:
        return GenerationChunk(text="", generation_info=self._info(generation))

    def _info(self, generation: Generation) -> dict[str, Any]:
        return {**self._metadata(generation), "usage": dict(usage(generation))}


def _options_of(call: Mapping[str, Any]) -> dict[str, Any]:
    def read(entry: Any) -> PromptDocument | None:
        document = as_document(entry)
        return None if document is None else PromptDocument(document.page_content)

    documents, options = split_call(call, read, "LangChain documents")
    if documents:
        raise UnsupportedGenerationError(
            "A text has its documents in it: mark them with format_docs(documents), or use "
            "ChatRagMiddle, which takes documents=."
        )
    return options
