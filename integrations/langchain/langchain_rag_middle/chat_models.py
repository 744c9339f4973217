"""ChatRagMiddle: a local chat model that reads marked documents under a method."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.language_models.model_profile import ModelProfile
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import ContextThreadPoolExecutor, get_config_list
from langchain_core.tools import BaseTool

from langchain_rag_middle.documents import as_document
from langchain_rag_middle.gathering import Gathering, Request
from langchain_rag_middle.messages import prompt_messages
from langchain_rag_middle.responses import answers, streamed, token_usage, usage
from langchain_rag_middle.schemas import openai_tool_of
from langchain_rag_middle.settings import RagMiddleSettings
from langchain_rag_middle.tools import StructuredMethod, call_chunks, call_fields, structured_output
from rag_middle import UnsupportedGenerationError
from rag_middle.integration import citations_in, in_thread, pieces_in_thread, split_call

if TYPE_CHECKING:
    from rag_middle import Document as PromptDocument
    from rag_middle import Generation

#: Calls of one `batch` that are under way together; of these, `max_batch_size` share a pass.
_WINDOW = 64


class ChatRagMiddle(RagMiddleSettings, BaseChatModel):
    """A local Hugging Face decoder as a chat model, whose documents are read under a method.

    ::

        model = ChatRagMiddle(model="Qwen/Qwen2.5-7B-Instruct", method="pine")
        chain = create_stuff_documents_chain(model, prompt, document_prompt=DocumentPrompt())

    Weights are loaded at the first call, and shared by all models that name the same. Every option
    can be given with a call or through ``bind``, the `method` too.

    Documents reach the model as text that `DocumentPrompt`, `format_docs` or `MarkDocuments` has
    marked; as content blocks (``search_result``, ``text-plain``, ``document``, ... as clients of
    other models send them); in a tool's message whose artifact names them
    (``response_format="content_and_artifact"``); or as ``documents=`` of a call, also in
    ``extra_body``, before the last message of the user. Documents of system messages at the start
    and of the last turn that has any count, together; those of earlier turns are plain text.

    ``response_metadata["rag_middle"]`` of an answer tells the method, whether it was applied, how
    many documents there were, and how long it took. Where an answer names a document that came as
    an object, its ``content_blocks`` have a ``citation`` annotation. `bind_tools` and
    `with_structured_output` work with models whose chat template shows tools, see docs/tools.md.
    The arguments are the attributes of `RagMiddleSettings`.

    Raises:
        ContextOverflowError: a call's prompt does not fit.
        PromptError: it cannot be turned into tokens.
        UnsupportedGenerationError: options of a call that cannot be served.
    """

    streaming: bool = False
    """Stream also where a chain calls ``invoke``, so that callbacks see the pieces."""

    @property
    def _llm_type(self) -> str:
        return "rag-middle-chat"

    def _resolve_model_profile(self) -> ModelProfile:
        profile = ModelProfile(
            text_inputs=True,
            text_outputs=True,
            structured_output=find_spec("llguidance") is not None,
        )
        profile["max_output_tokens"] = self.max_tokens
        window = self.context_window
        if not isinstance(self.model, str | Path):
            profile["tool_calling"] = self.model.calls_tools
            window = self.model.context_window
        if window is not None:
            profile["max_input_tokens"] = window
        return profile

    def get_num_tokens_from_messages(
        self, messages: list[BaseMessage], tools: Sequence[Any] | None = None
    ) -> int:
        """Tokens of the messages as they are sent, the chat template's included.

        Where documents of one message do not stand together, which a call may refuse, they count
        all the same: a history can be trimmed whatever it holds.
        """
        schemas = [openai_tool_of(tool) for tool in tools or ()]
        prompt = prompt_messages(messages, with_tools=bool(schemas), counted=True)
        return self.rag_middle_model.count_tokens(
            prompt, template_options=self.template_options, tools=schemas
        )

    # -- tools and structured output ------------------------------------------------------------

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | dict[str, Any] | bool | None = None,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """The model with tools that it may call, through its own chat template.

        Args:
            tools: functions, classes, LangChain tools or OpenAI's form.
            tool_choice: ``"auto"`` or None: the model decides; ``"none"``; ``"any"``,
                ``"required"`` or True: one has to be called; or a tool's name. What has to be
                called is written by constrained decoding, with arguments of its schema.
            strict: marks the schemas; arguments of forced calls fit them anyway.
            kwargs: options of the calls.
        """
        schemas = [openai_tool_of(tool, strict=strict) for tool in tools]
        if tool_choice is not None and tool_choice is not False:
            kwargs["tool_choice"] = "any" if tool_choice is True else tool_choice
        return self.bind(tools=schemas, **kwargs)

    def with_structured_output(
        self,
        schema: dict[str, Any] | type | None = None,
        *,
        method: StructuredMethod = "json_schema",
        include_raw: bool = False,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """Structured output, by constrained decoding (needs ``rag-middle[structured]``).

        Args:
            schema: a pydantic class, a typed dictionary, or a JSON schema.
            method: ``"json_schema"`` or ``"json_mode"``: the answer is JSON of the schema, which
                the prompt does not show; ``"function_calling"``: the arguments of a call, whose
                schema the chat template shows.
            include_raw: also give the message and what went wrong in reading it, as when its
                length ended it.
            strict: as of `bind_tools`.
            kwargs: refused: there are no other options.

        Raises:
            UnsupportedGenerationError: no such method, or it needs a schema.
        """
        if kwargs:
            raise UnsupportedGenerationError(f"There are no options {sorted(kwargs)} here.")
        return structured_output(self, schema, method, include_raw, strict)

    def _get_llm_string(self, stop: list[str] | None = None, **kwargs: Any) -> str:
        # What caches look up answers by: LangChain would take the description, which has no
        # documents and no tools in it.
        documents, options = self._documents_and_options(stop, kwargs)
        options["method"] = repr(options["method"])
        params = {**self._get_invocation_params(stop=stop), **options, "documents": documents}
        return str(sorted(params.items()))

    # -- one call -----------------------------------------------------------------------------

    @property
    def _call_names(self) -> tuple[str, ...]:
        return ("tools", "tool_choice", "response_format")

    def _request(
        self, messages: Sequence[BaseMessage], stop: list[str] | None, call: dict[str, Any]
    ) -> Request:
        documents, options = self._documents_and_options(stop, call)
        prompt = prompt_messages(messages, documents, with_tools=bool(options.get("tools")))
        return Request(prompt, options)

    def _documents_and_options(
        self, stop: list[str] | None, call: Mapping[str, Any]
    ) -> tuple[list[PromptDocument], dict[str, Any]]:
        """What a call says beside its messages.

        Raises:
            PromptError: no list of documents.
            UnsupportedGenerationError, UnknownNameError, MethodConfigError: as `_options`.
        """

        def read(entry: Any) -> PromptDocument | None:
            document = as_document(entry)
            return None if document is None else self.document_prompt.document(document)

        documents, options = split_call(call, read, "LangChain documents")
        return documents, self._options(stop, options)

    def _more_options(self, call: Mapping[str, Any]) -> dict[str, Any]:
        names = ("tools", "tool_choice", "response_format")
        more = {name: call[name] for name in names if call.get(name)}
        if isinstance(more.get("tools"), Iterator):
            raise UnsupportedGenerationError(
                f"tools must be a list, got {type(more['tools']).__name__}: it can be read once "
                "only, and calls may be made again."
            )
        if "tools" in more:
            more["tools"] = [openai_tool_of(tool) for tool in more["tools"]]
        return more

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        request = self._request(messages, stop, kwargs)
        gathered = Gathering.submit(self, request)
        if gathered is not None:
            return self._result(gathered.result(), request)
        return self._result(self._answers(request), request)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        request = self._request(messages, stop, kwargs)
        gathered = Gathering.submit(self, request)
        if gathered is not None:
            return self._result(await asyncio.wrap_future(gathered), request)

        def call(cancel: threading.Event) -> list[Generation]:
            return self._answers(request, cancel=cancel)

        return self._result(await in_thread(call), request)

    def _answers(self, request: Request, **more: Any) -> list[Generation]:
        size = self.max_batch_size
        [texts] = answers(
            self.rag_middle_model, [request.prompt], request.options, max_batch_size=size, **more
        )
        return texts

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        request = self._request(messages, stop, kwargs)
        yield from self._chunks(request)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        request = self._request(messages, stop, kwargs)
        cancel = threading.Event()
        request = replace(request, options={**request.options, "cancel": cancel})
        async for chunk in pieces_in_thread(self._chunks(request), cancel):
            yield chunk

    def _chunks(self, request: Request) -> Generator[ChatGenerationChunk, None, None]:
        def last(generation: Generation) -> ChatGenerationChunk:
            facts = self._facts(generation, request)
            message = AIMessageChunk(
                content="",
                chunk_position="last",
                tool_call_chunks=call_chunks(generation),
                **facts,
            )
            info = _for_callbacks(facts["response_metadata"])
            return ChatGenerationChunk(message=message, generation_info=info)

        def piece(text: str) -> ChatGenerationChunk:
            return ChatGenerationChunk(message=AIMessageChunk(content=text))

        yield from streamed(self.rag_middle_model, request.prompt, request.options, piece, last)

    def _result(self, texts: list[Generation], request: Request) -> ChatResult:
        generations = []
        for text in texts:
            facts = self._facts(text, request)
            message = AIMessage(content=text.text, **call_fields(text), **facts)
            info = _for_callbacks(facts["response_metadata"])
            generations.append(ChatGeneration(message=message, generation_info=info))
        output = {"token_usage": token_usage([texts]), "model_name": self.model_name}
        return ChatResult(generations=generations, llm_output=output)

    def _combine_llm_outputs(self, llm_outputs: list[dict[str, Any] | None]) -> dict[str, Any]:
        total: dict[str, int] = {}
        for output in llm_outputs:  # those that a cache or a stream answered have none
            for name, count in (output or {}).get("token_usage", {}).items():
                total[name] = total.get(name, 0) + count
        return {"token_usage": total, "model_name": self.model_name}

    def _facts(self, generation: Generation, request: Request) -> dict[str, Any]:
        metadata = self._metadata(generation)
        citations = citations_in(generation, request.prompt, "langchain")
        metadata["rag_middle"]["citations"] = citations
        return {"usage_metadata": usage(generation), "response_metadata": metadata}

    # -- several calls ------------------------------------------------------------------------

    def batch(
        self,
        inputs: list[LanguageModelInput],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[AIMessage]:
        """`invoke` for several inputs, whose prompts share forward passes.

        Each input has its own run, cache look-up and callbacks. ``max_concurrency`` of the config
        limits how many share a pass, besides ``max_batch_size``.
        """
        results: list[Any] = []
        for gathering, window, configs in self._windows(inputs, config):

            def call(
                asked: LanguageModelInput,
                settings: RunnableConfig,
                gathering: Gathering = gathering,
            ) -> Any:
                with gathering.call():
                    try:
                        return self.invoke(asked, settings, **kwargs)
                    except Exception as error:
                        return _wanted(error, return_exceptions)

            with ContextThreadPoolExecutor(len(window)) as threads:
                try:
                    answered = threads.map(call, window, configs)
                    gathering.serve()
                    results.extend(answered)
                except BaseException:
                    gathering.abandon()
                    raise
        return cast("list[AIMessage]", results)

    async def abatch(
        self,
        inputs: list[LanguageModelInput],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[AIMessage]:
        """As `batch`, without blocking the event loop."""
        results: list[Any] = []
        for gathering, window, configs in self._windows(inputs, config):

            async def call(
                asked: LanguageModelInput,
                settings: RunnableConfig,
                gathering: Gathering = gathering,
            ) -> Any:
                with gathering.call():
                    try:
                        return await self.ainvoke(asked, settings, **kwargs)
                    except Exception as error:
                        return _wanted(error, return_exceptions)

            calls = asyncio.gather(*map(call, window, configs))
            try:
                await gathering.serve_async()
                results.extend(await calls)
            except BaseException:
                gathering.abandon()
                calls.cancel()
                raise
        return cast("list[AIMessage]", results)

    def _windows(
        self,
        inputs: Sequence[LanguageModelInput],
        config: RunnableConfig | list[RunnableConfig] | None,
    ) -> Iterator[tuple[Gathering, Sequence[LanguageModelInput], list[RunnableConfig]]]:
        if not inputs:
            return
        configs = get_config_list(config, len(inputs))
        size = configs[0].get("max_concurrency") or _WINDOW
        if size < 1:
            raise UnsupportedGenerationError(f"max_concurrency must be at least 1, got {size}.")
        together = min(size, self.max_batch_size)

        def run(
            prompts: Sequence[Any], cancel: threading.Event, options: dict[str, Any]
        ) -> list[list[Generation]]:
            model = self.rag_middle_model
            return answers(model, prompts, options, max_batch_size=together, cancel=cancel)

        for start in range(0, len(inputs), size):
            window = inputs[start : start + size]
            gathering = Gathering(len(window), run, self)
            yield gathering, window, configs[start : start + size]


def _for_callbacks(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What older callbacks look for beside the message."""
    names = ("model_name", "finish_reason", "logprobs")
    return {name: metadata[name] for name in names if name in metadata}


def _wanted(error: Exception, as_result: bool) -> Exception:
    if not as_result:
        raise error
    return error
