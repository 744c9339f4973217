"""What a request asks of its answers: calls of tools to read, a form to keep to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rag_middle.attention import vocabulary_size
from rag_middle.errors import ChatTemplateError, UnsupportedGenerationError
from rag_middle.generation.constrained import Constraint
from rag_middle.generation.own_config import end_tokens
from rag_middle.options import GenerationOptions
from rag_middle.plain_data import map_strings, whole_characters
from rag_middle.thinking import THINKING
from rag_middle.tokens.templates import (
    PROBE_ARGUMENTS,
    PROBE_TOOL,
    ChatTemplate,
    has_chat_template,
)
from rag_middle.tools.definitions import InvalidToolCall, ToolCall, forced_tools
from rag_middle.tools.formats import AnswerText, ToolFormat, ToolMessage, format_of
from rag_middle.tools.grammars import answer_grammar, call_grammar


@dataclass(frozen=True, slots=True)
class ToolReader:
    """Reads the calls in answers, as the model's family writes them.

    Attributes:
        tokenizer: whose `parse_response` reads, where it brings a template of responses.
        form: of the family; None where only the tokenizer knows.
        tools: of the request.
        hidden: control tokens that are no part of a call.
        markers: tokens that begin and end calls and thinking, with their strings.
        forced: tools of which the answer's grammar knows the calls; none where any text will do.
        may_answer: True if that grammar allows another answer than a call.
        thinking: True if the prompt ended within the model's thinking.
    """

    tokenizer: PreTrainedTokenizerBase
    form: ToolFormat | None
    tools: tuple[Any, ...]
    hidden: frozenset[int]
    markers: Mapping[int, str]
    forced: tuple[Any, ...] = ()
    may_answer: bool = True
    thinking: bool = False

    def call_start(self, text: str, places: Mapping[int, str]) -> int:
        """Where in a growing answer a call may begin; its length if nowhere.

        `places` are offsets of the tokens of `markers` in the text so far, with their strings.
        """
        if self.form is not None and self.forced:
            return self.form.forced_start(text) if self.may_answer else 0
        if self.form is None or self._reads_by_template:
            return 0  # only the whole answer can be read
        return self.form.call_start(self._answer(text, places))

    def message(self, text: str, places: Mapping[int, str]) -> ToolMessage:
        """Read a whole answer, the control tokens of calls included."""
        if self.form is not None and self.forced:
            message = self.form.forced_message(text, self.forced)
            if text and not (self.may_answer or message.calls or message.invalid):
                wrong = InvalidToolCall(text=text, error="The call has no end.")
                return ToolMessage("", invalid=(wrong,))
            return message
        if not self._reads_by_template:
            assert self.form is not None
            return self.form.message(self._answer(text, places), self.tools)
        try:
            read = self.tokenizer.parse_response(text, prefix="", tools=list(self.tools))
            functions = [call.get("function", call) for call in read.get("tool_calls") or ()]
            calls = [_read_call(function) for function in functions]
        except Exception as error:  # the template comes with the model
            if self.form is not None:
                return self.form.message(self._answer(text, places), self.tools)
            return ToolMessage("", invalid=(InvalidToolCall(text=text, error=repr(error)),))
        return ToolMessage(read.get("content") or "", tuple(calls))

    def _answer(self, text: str, places: Mapping[int, str]) -> AnswerText:
        return AnswerText(text, frozenset(self.markers.values()), places, self.thinking)

    @property
    def _reads_by_template(self) -> bool:
        return bool(getattr(self.tokenizer, "response_template", None))


def _read_call(function: Mapping[str, Any]) -> ToolCall:
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if not isinstance(arguments, Mapping):
        raise TypeError(f"arguments are {type(arguments).__name__}, and not by name")
    return ToolCall(
        name=whole_characters(function["name"]), arguments=map_strings(arguments, whole_characters)
    )


def tool_reader(
    tokenizer: PreTrainedTokenizerBase, options: GenerationOptions
) -> ToolReader | None:
    """What reads the calls of a request; None for one without tools.

    Raises:
        ChatTemplateError: nobody knows how this model writes calls.
    """
    if not options.tools or options.tool_choice == "none":
        return None
    sources: list[str] = []
    own = (options.template_options or {}).get("chat_template")
    map_strings(own or tokenizer.chat_template, sources.append)
    template = "\n".join(sources)
    form = format_of(template)
    written = ChatTemplate(tokenizer, options.template_options or {}).probe_call()
    if form is not None and written is not None and not _reads(form, written):
        form = None  # families share words: `<tool_call>` begins calls of several forms
    if form is None and not getattr(tokenizer, "response_template", None):
        raise ChatTemplateError(
            "The chat template writes tool calls in none of the known forms, so nobody could read "
            "them. Set tokenizer.response_template, from which transformers reads responses, or "
            "use a model of another family (docs/tools.md lists them)."
        )
    added = tokenizer.added_tokens_decoder
    visible = form.markers if form else tuple(map(str, added.values()))
    hidden = frozenset(
        token_id
        for token_id, token in added.items()
        if token.special and str(token.content) not in visible
    )
    markers = {
        token_id: str(token.content)
        for token_id, token in added.items()
        if form and token.content in (*form.markers, *THINKING) and token_id not in hidden
    }
    forced = forced_tools(options.tool_choice, options.tools)
    may_answer = not forced
    form_of_answer = options.response_format or {"type": "text"}
    if may_answer and form is not None and form_of_answer["type"] != "text":
        forced = list(options.tools)  # either of them
    return ToolReader(
        tokenizer,
        form,
        tuple(options.tools),
        hidden,
        markers,
        tuple(forced),
        may_answer,
    )


def reads_calls(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the chat template shows tools, in a form in which calls can be read."""
    if not has_chat_template(tokenizer):
        return False
    tool = {"type": "function", "function": {"name": "f"}}
    try:
        tool_reader(tokenizer, GenerationOptions(tools=[tool]))
    except ChatTemplateError:
        return False
    return ChatTemplate(tokenizer, {}).shows_tools


def _reads(form: ToolFormat, written: str) -> bool:
    """Whether the form finds the call of the probe in what a template wrote."""
    if form.whole:  # which begins an answer, and here stands after the turn's beginning
        written = written[max(0, written.find(form.whole)) :]
    calls = form.message(AnswerText(written), [PROBE_TOOL]).calls
    return any(call.arguments == PROBE_ARGUMENTS for call in calls)


def constraint_of(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    options: GenerationOptions,
    reader: ToolReader | None,
) -> Constraint | None:
    """What answers of a request have to keep to; None where any text will do.

    Raises:
        UnsupportedGenerationError: it cannot be kept to.
        MissingExtraError: the engine is not installed.
    """
    answer = answer_grammar(options.response_format) if options.response_format else None
    if reader is not None and reader.forced:
        if reader.form is None or not reader.form.call:
            raise UnsupportedGenerationError(
                f"tool_choice={options.tool_choice!r:.100} cannot be forced for calls as "
                f"{reader.form.name if reader.form else 'this model'} writes them. Pass 'auto', or "
                "ask for response_format instead of a call."
            )
        ids = {str(token.content): i for i, token in tokenizer.added_tokens_decoder.items()}
        may_answer = answer if reader.may_answer else None
        answer = call_grammar(reader.forced, reader.form, ids.get, may_answer)
    if answer is None:
        return None
    if options.num_beams > 1:
        raise UnsupportedGenerationError(
            f"num_beams={options.num_beams} (--beams) and answers of a given form exclude "
            "each other: beams are cut to the likeliest texts, which may be incomplete ones. "
            "Pass num_beams=1 (--beams 1)."
        )
    if options.no_repeat_ngram_size:
        raise UnsupportedGenerationError(
            f"no_repeat_ngram_size={options.no_repeat_ngram_size} and answers of a given "
            "form exclude each other: the form may need a sequence again. Leave it out."
        )
    ends = sorted(end_tokens(model, tokenizer, (), options.eos_token_id))
    return Constraint(tokenizer, vocabulary_size(model), ends, answer)
