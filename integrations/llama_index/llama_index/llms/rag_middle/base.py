"""RagMiddleLLM: a local model that reads marked documents under a method."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, Self

from llama_index.core import Settings
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    LLMMetadata,
)
from llama_index.core.bridge.pydantic import Field, PrivateAttr, field_serializer
from llama_index.core.callbacks import CallbackManager
from llama_index.core.constants import DEFAULT_CONTEXT_WINDOW, DEFAULT_NUM_OUTPUTS
from llama_index.core.llms import CustomLLM
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.llm import default_completion_to_prompt
from llama_index.core.prompts import BasePromptTemplate, PromptTemplate
from llama_index.core.types import BaseOutputParser, PydanticProgramMode
from llama_index.llms.rag_middle.documents import without_documents
from llama_index.llms.rag_middle.errors import refusals
from llama_index.llms.rag_middle.loading import named_model, stop_strings, wrapped_model
from llama_index.llms.rag_middle.nodes import passed_document
from llama_index.llms.rag_middle.prompting import (
    MARKING,
    Request,
    UnwrittenPrompt,
    chat_request,
    completion_request,
    in_thread,
    streamed_in_thread,
)
from llama_index.llms.rag_middle.responses import as_chat, completion, growing
from llama_index.llms.rag_middle.synthesis import called_by_memory, watch_syntheses
from llama_index.llms.rag_middle.tools import ToolCalling

from rag_middle import Method, RagMiddleModel, UnsupportedGenerationError
from rag_middle.generation import MethodLike, transformers_options
from rag_middle.integration import (
    LOADING,
    OPTIONS,
    call_options,
    chosen_method,
    renamed,
    split_call,
    split_loading,
    unknown_option,
    without_secrets,
)
from rag_middle.methods import method_in_words, method_name, resolve_method

watch_syntheses()


class RagMiddleLLM(ToolCalling, CustomLLM):
    """A local Hugging Face decoder that reads the documents of a prompt under a method.

    ::

        llm = RagMiddleLLM(model_name="Qwen/Qwen2.5-7B-Instruct", method="pine")

    Documents are told apart by markers: put `MarkDocuments` last among the postprocessors of a
    query or chat engine, and let `DocumentPromptHelper` pack them. Chat messages may also hold
    documents as ``CitableBlock`` or ``DocumentBlock``, and every call takes ``documents=``, also in
    ``extra_body``. Where an answer names such a document, its message has a ``CitationBlock``.

    The names are those of ``HuggingFaceLLM``. Of the options of a call (``llm.complete(prompt,
    temperature=0.7)``) and of `generate_kwargs` none is ignored: they are those of
    `rag_middle.generation.GenerationOptions`, and a `method` with its `method_options`; other names
    are refused. `generate_kwargs` may be those of transformers (``do_sample``).

    Args:
        model_name: a directory or a name on the Hugging Face hub; by default the small one that
            commands use.
        model: a loaded model instead: one of transformers with its `tokenizer`, a text-generation
            pipeline, whose options hold where nothing else is said, or a `RagMiddleModel`, whose
            weights are shared.
        tokenizer: the tokenizer of a loaded model, or one to use instead of the model's own.
        tokenizer_name: where to load another tokenizer from.
        method: a name, a preset, a composition or a method object, as for `RagMiddleModel`; by
            default ``"none"``, or that of the `RagMiddleModel`.
        method_options: its parameters, where it is a name.
        on_missing_documents: ``"warn"``, ``"error"`` or ``"ignore"`` where the method needs
            documents and a prompt has none.
        context_window: tokens that prompt and answer may have together, instead of what the
            model's config says.
        max_new_tokens: most tokens of an answer; by default a pipeline's own number, else 256.
        generate_kwargs: options of every call.
        stopping_ids: token ids that end an answer and are left out of it.
        system_prompt: a system message before every prompt that LlamaIndex's engines send.
        query_wrapper_prompt: a template with ``{query_str}`` around every completion prompt.
        messages_to_prompt: a function that writes the whole prompt instead of the chat template.
            Control tokens that it writes itself are recognised; those in the messages stay text.
            It is called several times, also with placeholders in place of contents.
        completion_to_prompt: the same for completion prompts. The query wrapper around them may
            write control tokens too.
        is_chat_model: whether engines send messages; by default where there is a chat template
            or `messages_to_prompt`.
        device_map: how to spread the model over devices (``"auto"``; needs the accelerate
            package). By default it goes to the first GPU, else to the CPU.
        model_kwargs: more arguments for loading the model: ``dtype``, ``quantization_config``,
            ``attn_implementation``, ``revision``, ``trust_remote_code``, ...
        tokenizer_kwargs: more arguments for loading the tokenizer.
        tokenizer_outputs_to_remove: accepted for the sake of old code; only token ids and their
            mask ever reach the model.
        callback_manager: LlamaIndex's callbacks.
        pydantic_program_mode: how structured output is asked for: by a call where the model calls
            tools, else by text completion.
        output_parser: applied to what engines get.
        token: of the hub, for model and tokenizer; kept nowhere.
        options: more for loading (``dtype``, ``device``, ``revision``, ...) and for every call
            (``temperature``, ``seed``, ...), under the names that `ChatRagMiddle` of LangChain has,
            too; they go to `model_kwargs` and `generate_kwargs`.

    Raises:
        UnknownNameError: no such method.
        MethodConfigError: parameters the method refuses.
        UnsupportedArchitectureError: the model cannot take the method.
        UnsupportedGenerationError: arguments that contradict each other.
        ModelNotFoundError: no such model.
    """

    model_name: str = Field(description="Name or directory of the model.")
    tokenizer_name: str = Field(default="", description="Where the tokenizer comes from.")
    method: Any = Field(default="none", description="The method prompts are read under.")
    method_options: dict[str, Any] = Field(default_factory=dict, description="Its parameters.")
    on_missing_documents: str = Field(
        default=OPTIONS["on_missing_documents"].default,
        description=OPTIONS["on_missing_documents"].help,
    )
    context_window: int = Field(description="Tokens of prompt and answer together.")
    max_new_tokens: int = Field(description=OPTIONS["max_new_tokens"].help)
    generate_kwargs: dict[str, Any] = Field(default_factory=dict, description="Of every call.")
    stopping_ids: list[int] = Field(default_factory=list, description="Tokens that end an answer.")
    is_chat_model: bool = Field(description="Whether engines send messages.")
    device_map: Any = Field(default=None, description="How the model is spread.")
    model_kwargs: dict[str, Any] = Field(default_factory=dict, description="For loading.")
    tokenizer_kwargs: dict[str, Any] = Field(default_factory=dict, description="For loading.")
    tokenizer_outputs_to_remove: list[str] = Field(default_factory=list, description="No effect.")

    _model: RagMiddleModel = PrivateAttr()
    _stops: tuple[str, ...] = PrivateAttr()
    _calls_tools: bool = PrivateAttr()
    _last_report: dict[str, Any] | None = PrivateAttr(default=None)
    _is_loaded: bool = PrivateAttr()  # it was given a loaded model or tokenizer

    def __init__(  # positions are those of HuggingFaceLLM
        self,
        context_window: int | None = None,
        max_new_tokens: int | None = None,
        query_wrapper_prompt: str | BasePromptTemplate | None = None,
        tokenizer_name: str | Path | None = None,
        model_name: str | Path | None = None,
        model: Any | None = None,
        tokenizer: Any | None = None,
        device_map: str | Mapping[str, Any] | None = None,
        stopping_ids: Sequence[int] | None = None,
        tokenizer_kwargs: Mapping[str, Any] | None = None,
        tokenizer_outputs_to_remove: Sequence[str] | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        generate_kwargs: Mapping[str, Any] | None = None,
        is_chat_model: bool | None = None,
        callback_manager: CallbackManager | None = None,
        system_prompt: str | None = None,
        messages_to_prompt: Callable[[Sequence[ChatMessage]], str] | None = None,
        completion_to_prompt: Callable[[str], str] | None = None,
        pydantic_program_mode: PydanticProgramMode = PydanticProgramMode.DEFAULT,
        output_parser: BaseOutputParser | None = None,
        *,
        method: MethodLike | None = None,
        method_options: Mapping[str, Any] | None = None,
        on_missing_documents: str = "warn",
        token: str | bool | None = None,
        **options: Any,
    ) -> None:
        if isinstance(context_window, str | Path):  # the first position, where models are expected
            raise UnsupportedGenerationError(
                f"context_window is a number of tokens, got {str(context_window)!r}: a model's "
                "name goes to model_name=."
            )
        options = renamed(options)
        model_kwargs, of_answers = split_loading(model_kwargs)
        model_kwargs |= {name: options.pop(name) for name in LOADING if name in options}
        for option in options:
            if option not in OPTIONS:
                own = inspect.signature(RagMiddleLLM).parameters
                raise unknown_option(option, sorted({*own, *LOADING, *OPTIONS} - {"options"}))
        is_loaded = model is not None or tokenizer is not None
        if not isinstance(model, RagMiddleModel):  # which has one, and descriptions always name one
            tokenizer = tokenizer or tokenizer_name
        wrapped, of_pipeline = wrapped_model(model, tokenizer, tokenizer_kwargs or {})
        length = of_pipeline.pop("max_new_tokens", DEFAULT_NUM_OUTPUTS)
        options = {**of_answers, **(generate_kwargs or {}), **options}
        generate_kwargs = {**of_pipeline, **transformers_options("generate_kwargs", options)}
        if max_new_tokens is None:
            max_new_tokens = generate_kwargs.pop("max_new_tokens", length)
        chosen = chosen_method(method, method_options, wrapped)
        if wrapped is None:
            loaded = named_model(
                model_name,
                tokenizer,
                model_kwargs,
                tokenizer_kwargs or {},
                token,
                method=chosen,
                context_window=context_window,
                device_map=device_map,
            )
        else:
            loading = {"device_map": device_map, "model_kwargs": model_kwargs, "token": token}
            if useless := [name for name, value in loading.items() if value]:
                raise UnsupportedGenerationError(
                    f"{' and '.join(useless)} say how to load a model, and model= is loaded "
                    "already. Pass model_name= instead, or leave them out."
                )
            loaded = _rerun(wrapped, chosen, context_window)
        stops = stop_strings(loaded.tokenizer, stopping_ids or ())
        name = str(model_name or loaded.model.name_or_path or type(loaded.model).__name__)
        if isinstance(query_wrapper_prompt, str):
            query_wrapper_prompt = PromptTemplate(query_wrapper_prompt)
        if is_chat_model is None:
            has_template = bool(getattr(loaded.tokenizer, "chat_template", None))
            is_chat_model = has_template or messages_to_prompt is not None
        super().__init__(
            model_name=name,
            tokenizer_name=str(tokenizer_name or name),
            method=loaded.method if method is None else method,
            method_options=dict(method_options or {}),
            on_missing_documents=on_missing_documents,
            context_window=loaded.context_window or DEFAULT_CONTEXT_WINDOW,
            max_new_tokens=max_new_tokens,
            generate_kwargs=generate_kwargs,
            stopping_ids=list(stopping_ids or []),
            system_prompt=system_prompt,
            query_wrapper_prompt=query_wrapper_prompt,
            messages_to_prompt=messages_to_prompt,
            completion_to_prompt=completion_to_prompt,
            is_chat_model=is_chat_model,
            device_map=device_map,
            model_kwargs=without_secrets(model_kwargs),
            tokenizer_kwargs=without_secrets(tokenizer_kwargs),
            tokenizer_outputs_to_remove=list(tokenizer_outputs_to_remove or []),
            callback_manager=callback_manager or CallbackManager([]),
            pydantic_program_mode=pydantic_program_mode,
            output_parser=output_parser,
        )
        self._model = loaded
        self._is_loaded = is_loaded
        self._stops = stops
        of_calls = self._options({})  # a misspelt one is refused here, not at the first question
        if of_calls.get("method") is not None:
            resolve_method(of_calls["method"], of_calls.get("method_options"))
        self._calls_tools = messages_to_prompt is None and loaded.calls_tools

    @classmethod
    def class_name(cls) -> str:
        return "RagMiddleLLM"

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickles: names and options; weights are loaded again.

        Raises:
            UnsupportedGenerationError: it was made with a loaded model or tokenizer.
        """
        if self._is_loaded:
            raise UnsupportedGenerationError(
                "Weights are not pickled, and this LLM was given a loaded model or tokenizer: make "
                "it from names (model_name='...'), from which they are loaded again."
            )
        arguments = {name: getattr(self, name) for name in _ARGUMENTS}
        if self.tokenizer_name == self.model_name:
            del arguments["tokenizer_name"]
        if not self.callback_manager.handlers:
            del arguments["callback_manager"]
        return partial(type(self), **arguments), ()

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> RagMiddleLLM:
        """A copy whose options are its own and whose weights are shared."""
        own = ("generate_kwargs", "method_options", "model_kwargs", "stopping_ids")
        return super().model_copy(update={name: deepcopy(getattr(self, name)) for name in own})

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field: the next call has it. Setting `method` resets `method_options`.

        Raises:
            UnknownNameError: no such method.
            MethodConfigError: parameters that the method refuses.
            UnsupportedGenerationError: the field says what is loaded.
        """
        for field, setting in self._changed({name: value}).items():
            super().__setattr__(field, setting)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with other fields, on the same weights; raises as setting a field does."""
        changed = self._changed(update or {})
        private = {name: changed.pop(name) for name in ("_model", "_stops") if name in changed}
        copy = super().model_copy(update=changed, deep=deep)
        for name, value in private.items():
            setattr(copy, name, value)
        return copy

    def _changed(self, update: Mapping[str, Any]) -> dict[str, Any]:
        """What to set for a change of fields."""
        if fixed := [name for name in _LOADING if name in update]:
            raise UnsupportedGenerationError(
                f"{', '.join(fixed)} cannot change, since weights are loaded once: make another "
                f"{type(self).__name__}. It shares the weights where it can."
            )
        changed = dict(update)
        if "stopping_ids" in update:
            changed["_stops"] = stop_strings(self._model.tokenizer, update["stopping_ids"])
        if "method" in update:
            changed = {"method_options": {}, **changed}
        choice = ("method", "method_options")
        if any(name in changed for name in choice):
            method, options = (changed.get(name, getattr(self, name)) for name in choice)
            chosen = chosen_method(method, options)
        elif "context_window" in update:
            chosen = self._model.method
        else:
            return changed
        changed["_model"] = _rerun(self._model, chosen, update.get("context_window"))
        return changed

    @field_serializer("method")
    def _method_as_text(self, method: Any) -> Any:
        return method if method is None else _in_words(method)[0]

    @field_serializer("method_options")
    def _options_of_method(self, options: dict[str, Any]) -> dict[str, Any]:
        return options or ({} if self.method is None else _in_words(self.method)[1])

    @field_serializer("model_kwargs")
    def _dtype_as_text(self, options: dict[str, Any]) -> dict[str, Any]:
        dtype = options.get("dtype")
        return options if dtype is None else {**options, "dtype": str(dtype).removeprefix("torch.")}

    @field_serializer("generate_kwargs")
    def _method_of_calls_as_text(self, options: dict[str, Any]) -> dict[str, Any]:
        if options.get("method") is None:
            return options
        name, own = _in_words(options["method"])
        return {**options, "method": name, **({"method_options": own} if own else {})}

    @property
    def rag_middle_model(self) -> RagMiddleModel:
        """The model itself, to share or to measure with."""
        return self._model

    @property
    def last_report(self) -> dict[str, Any] | None:
        """What the call that ended last tells under ``response.raw["rag_middle"]``.

        Method, whether it was applied, number of documents, those left out, seed and timings.
        `None` before the first call. Where several threads call, it is that of any of them.
        """
        return self._last_report

    @property
    def metadata(self) -> LLMMetadata:
        """Context window and number of output tokens as they are; whether tools can be called."""
        return LLMMetadata(
            context_window=self.context_window,
            num_output=self.max_new_tokens,
            is_chat_model=self.is_chat_model,
            is_function_calling_model=self._calls_tools,
            model_name=self.model_name,
        )

    def to_payload(self) -> dict[str, Any]:
        """What events and traces say about this LLM: the metadata and the method."""
        return {**super().to_payload(), "method": method_name(self._model.method)}

    def install_tokenizer(self) -> None:
        """Have LlamaIndex count with this model's tokens: sets ``Settings.tokenizer``.

        Without it splitters, chat memories and prompt helpers count GPT-3.5's.
        """
        Settings.tokenizer = self.tokenize

    def tokenize(self, text: str) -> list[int]:
        """Token ids of text inside a prompt: no special tokens, control tokens stay text."""
        return list(self._model.token_ids(text))

    def count_prompt_tokens(self, prompt: str | Sequence[ChatMessage]) -> int:
        """Tokens of a prompt as an engine's call would send it, chat template included.

        Args:
            prompt: messages, or a prompt that is formatted already.

        Raises:
            RequestError: it cannot be turned into tokens.
        """
        with refusals():
            if isinstance(prompt, str):
                request = self._completion_request(prompt, True, {})
            else:
                request = self._chat_request(prompt, {})
            names = ("template", "system", "template_options", "allow_control_tokens")
            shaping = {name: request.options[name] for name in names if name in request.options}
            return len(self._model.encode(request.prompt, **shaping))

    def _get_prompt(self, prompt: BasePromptTemplate, **prompt_args: Any) -> str:
        text = prompt.format(llm=self, **prompt_args)
        written = text if self.output_parser is None else self.output_parser.format(text)
        return self._extend_prompt(written)

    def _extend_prompt(self, formatted_prompt: str) -> str:
        if self.completion_to_prompt is default_completion_to_prompt:
            return super()._extend_prompt(formatted_prompt)
        return UnwrittenPrompt(formatted_prompt)

    def _options(self, call: Mapping[str, Any]) -> dict[str, Any]:
        own = {
            "max_new_tokens": self.max_new_tokens,
            "on_missing_documents": self.on_missing_documents,
            **self.generate_kwargs,
        }
        options = call_options(own, call, MARKING)
        if self._stops:
            stop = options.get("stop", ())
            options["stop"] = [*([stop] if isinstance(stop, str) else stop), *self._stops]
        return options

    def _chat_request(self, messages: Sequence[ChatMessage], call: Mapping[str, Any]) -> Request:
        has_template = bool(getattr(self._model.tokenizer, "chat_template", None))
        documents, rest = split_call(call, passed_document, "nodes")
        if called_by_memory():  # a history in one message, documents of several turns included
            messages = without_documents(messages)
        options = self._options(rest)
        return chat_request(self, messages, options, documents, has_chat_template=has_template)

    def _completion_request(self, prompt: str, formatted: bool, call: Mapping[str, Any]) -> Request:
        documents, rest = split_call(call, passed_document, "nodes")
        return completion_request(self, prompt, formatted, self._options(rest), documents)

    def _answer(self, request: Request) -> CompletionResponse:
        generation = self._model.generate(request.prompt, **request.options)
        return self._reported(
            completion(
                generation.text,
                generation,
                self.model_name,
                prompt=request.prompt,
                token_text=self._model.token_text,
            )
        )

    def _growing(
        self, request: Request, shape: Callable[[CompletionResponse], Any] = lambda answer: answer
    ) -> Generator[Any, None, None]:
        # Refusals come here, at the call, and not when the first piece is asked for.
        pieces = self._model.stream(request.prompt, **request.options)
        return growing(
            pieces,
            self.model_name,
            lambda answer: shape(self._reported(answer)),
            request.prompt,
            self._model.token_text,
        )

    def _reported(self, answer: CompletionResponse) -> CompletionResponse:
        """The answer; the report that its end comes with is the last one from here on."""
        if answer.raw is not None:
            self._last_report = answer.raw["rag_middle"]
        return answer

    # -- LlamaIndex's calls -------------------------------------------------------------------

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """The model's answer to a prompt.

        Args:
            prompt: what to answer; a user message where there is a chat template.
            formatted: the prompt is written as the model shall read it. Control tokens in it are
                text, unless `allow_control_tokens` is given too.
            kwargs: options of this call, see the class.

        Raises:
            ContextWindowError: prompt and answer do not fit.
            RequestError: the prompt or an option is refused.
        """
        with refusals():
            return self._answer(self._completion_request(prompt, formatted, kwargs))

    @llm_completion_callback()
    def stream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponseGen:
        """As `complete`, piece by piece. What is raised while generating is raised here."""
        with refusals():
            return self._growing(self._completion_request(prompt, formatted, kwargs))

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """The model's answer to a conversation; raises as `complete` does."""
        with refusals():
            return as_chat(self._answer(self._chat_request(messages, kwargs)))

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        """As `chat`, piece by piece."""
        with refusals():
            return self._growing(self._chat_request(messages, kwargs), as_chat)

    @llm_completion_callback()
    async def acomplete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponse:
        """As `complete`, in a thread. Cancelling ends the generation."""
        with refusals():
            return await in_thread(
                self._answer, self._completion_request(prompt, formatted, kwargs)
            )

    @llm_completion_callback()
    async def astream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponseAsyncGen:
        """As `stream_complete`, in a thread."""
        with refusals():
            request = self._completion_request(prompt, formatted, kwargs)
            return await streamed_in_thread(self._growing, request)

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """As `chat`, in a thread. Cancelling ends the generation."""
        with refusals():
            return as_chat(await in_thread(self._answer, self._chat_request(messages, kwargs)))

    @llm_chat_callback()
    async def astream_chat(
        self, messages: Sequence[ChatMessage], **kwargs: Any
    ) -> ChatResponseAsyncGen:
        """As `stream_chat`, in a thread."""
        with refusals():
            request = self._chat_request(messages, kwargs)
            return await streamed_in_thread(partial(self._growing, shape=as_chat), request)


def _rerun(model: RagMiddleModel, method: Method, context_window: int | None) -> RagMiddleModel:
    """The same weights under a method, in a window of so many tokens or the same one."""
    return RagMiddleModel(
        model.model,
        model.tokenizer,
        method=method,
        context_window=context_window or model.context_window,
    )


def _in_words(method: MethodLike) -> tuple[str, dict[str, Any]]:
    """Name and options of a method; its `repr` where none choose it, which nothing reads back."""
    if isinstance(method, str):
        return method, {}
    chosen = resolve_method(method)
    return method_in_words(chosen) or (repr(chosen), {})


#: Fields that say what is loaded.
_LOADING = ("model_name", "tokenizer_name", "device_map", "model_kwargs", "tokenizer_kwargs")
#: What makes an LLM again that was made from names.
_ARGUMENTS = [
    name
    for name in inspect.signature(RagMiddleLLM.__init__).parameters
    if name not in ("self", "model", "tokenizer", "token", "options")
]
