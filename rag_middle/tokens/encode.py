"""From a prompt with documents to token ids and document spans."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from itertools import chain
from typing import TYPE_CHECKING, Any

from rag_middle.documents import ContextPrompt, Document, parse, unmark
from rag_middle.errors import ChatTemplateError, PromptError
from rag_middle.notices import ChatTemplateWarning, warn_caller
from rag_middle.options import OPTIONS, Template
from rag_middle.tokens.chat import Rendering
from rag_middle.tokens.conversation import MODEL_ROLES, Conversation, Message, message_of
from rag_middle.tokens.prompt import TokenizedPrompt
from rag_middle.tokens.templates import ChatTemplate, has_chat_template, reads_option
from rag_middle.tokens.text import TextEncoder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer

Prompt = ContextPrompt | str | Sequence[Message]

#: How the turns of chat templates begin.
_TURN = re.compile(
    r"\s*(?:(?:<s>|<bos>|<BOS_TOKEN>|<\|begin_of_text\|>|<\|startoftext\|>"
    r"|<｜begin▁of▁sentence｜>|\[gMASK\]<sop>)\s*)?"
    r"(<\|(?:im_start|user|system|assistant|start_header_id|start_of_role|start|User)\|>"
    r"|<\|turn>|<start_of_turn>|\[INST\]|\[SYSTEM_PROMPT\]|<<SYS>>|<｜User｜>|<\|START_OF_TURN_TOKEN\|>"
    r"|### (?:Instruction|Human|User):)"
)


def encode(
    tokenizer: Tokenizer,
    prompt: Prompt,
    *,
    template: Template = "auto",
    system: str | None = None,
    add_generation_prompt: bool = True,
    allow_control_tokens: bool = False,
    template_options: Mapping[str, Any] | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    rewrite: Callable[[ContextPrompt], ContextPrompt] | None = None,
) -> TokenizedPrompt:
    """Tokenise a prompt and say where its documents lie.

    Each document is tokenised on its own, with its separator, as text that continues other text.
    Its tokens are therefore the same at any position and beside any other documents. Documents
    and message contents are inert: what looks like a control token in them becomes ordinary tokens.

    Prefix and suffix become one user message where a chat template is used. The prompt begins
    with exactly one BOS where the tokenizer or the template writes one.

    Args:
        tokenizer: a Hugging Face tokenizer, fast or slow.
        prompt: a prompt, a string with marked documents, or chat messages. A message's content is
            a string that may have them, or a `ContextPrompt`. The documents of system messages at
            the start and of the last turn that has any count, together where the first one stands;
            those of earlier turns are plain text.
        template: ``"chat"`` uses the tokenizer's chat template, ``"raw"`` none; ``"auto"`` uses it
            if there is one. A function that writes messages as one text stands in for the chat
            template: it may write control tokens, and contents that it passes on stay inert. It is
            called several times, also with placeholders in place of contents.
        system: a system message. Where the template takes none, and in raw mode, it stands before
            the prompt.
        add_generation_prompt: chat only: end with the opening of the assistant's answer.
        allow_control_tokens: raw only: recognise control tokens in prefix and suffix, which then
            must be the caller's own text. Documents stay inert.
        template_options: chat only: more arguments for the template (``enable_thinking``).
            ``continue_final_message`` goes on in a last message of the model, which is not closed.
        tools: chat only: what the model may call, in OpenAI's form. What they say is inert too.
        rewrite: changes the caller's prompt before a template is put around it. Of a conversation
            it gets the message that holds the documents; where there are none, the last message,
            if that is the user's.

    Raises:
        PromptError: the prompt is empty, or of the wrong shape.
        UnsupportedGenerationError: an argument is of the wrong type.
        MarkerError: the documents in a string or a message do not stand together.
        ChatTemplateError: there is no chat template and one is needed, or the template
            (a function too) fails, drops or repeats the documents, leaves tools out, or makes
            control tokens of what messages say.

    Warns:
        UnreadMarkersWarning: of document markers that `mark` has not made: they are text.
        ChatTemplateWarning: the prompt is not exactly what the chat template writes, or begins like
            one written by hand; or the template does not read one of `template_options`.
    """
    OPTIONS["template"].check(template)
    OPTIONS["system"].check(system)
    OPTIONS["template_options"].check(template_options)
    if template_options and template_options.get("documents"):
        raise PromptError(
            "template_options must not hold documents: the template would write them as text, "
            "and no method could tell where they are. Put them into the prompt: "
            "ContextPrompt(documents=[...]), or documents= of an integration or of a request to "
            "the server."
        )
    options = {"add_generation_prompt": add_generation_prompt, **(template_options or {})}
    if continued := bool(options.get("continue_final_message")):
        _check_continued(prompt)
        options["add_generation_prompt"] = False
    encoder = TextEncoder(tokenizer)
    if isinstance(prompt, str):
        if not allow_control_tokens:
            _warn_of_written_template(prompt)
        prompt = parse(prompt)
    asked: ContextPrompt | Conversation = (
        prompt if isinstance(prompt, ContextPrompt) else Conversation.of_messages(prompt, continued)
    )
    if rewrite is not None:
        asked = _rewritten(asked, rewrite, allow_control_tokens)
    is_chat = uses_chat_template(tokenizer, template)
    if tools and not is_chat:
        raise ChatTemplateError(
            "tools go through the tokenizer's chat template: it has none, or another template "
            "was chosen. Leave out template=, or use a model whose chat template knows tools."
        )
    if callable(template) and (
        allow_control_tokens or template_options or not add_generation_prompt
    ):
        raise PromptError(
            "A template function writes the whole prompt: leave out allow_control_tokens, "
            "template_options and add_generation_prompt."
        )
    if isinstance(asked, ContextPrompt) and not (callable(template) or is_chat):
        if template_options:
            raise PromptError("template_options were given, but no chat template is used.")
        return _encode_raw(encoder, asked, system, allow_control_tokens)
    if template == "raw":
        raise PromptError(
            "template='raw' (--template raw) takes a prompt or a string, not messages: in "
            "LangChain RagMiddleLLM passes one, in LlamaIndex complete()."
        )
    if allow_control_tokens:
        raise PromptError("allow_control_tokens=True needs template='raw'.")
    conversation = Conversation.of_prompt(asked) if isinstance(asked, ContextPrompt) else asked
    if system is not None:
        conversation = conversation.with_system(system)
    conversation = replace(conversation, tools=tuple(tools or ()))
    if not callable(template):
        if not has_chat_template(tokenizer):
            raise ChatTemplateError(
                "The tokenizer has no chat template. Set tokenizer.chat_template, load the "
                "instruction-tuned model's tokenizer, or pass one prompt instead of messages, with "
                "template='raw' (--template raw; in LangChain by RagMiddleLLM, in LlamaIndex by "
                "complete())."
            )
        _warn_of_unread_options(tokenizer, template_options or {})
        template = ChatTemplate(tokenizer, options)
    before, *after = Rendering(template, encoder, conversation).render()
    prefix = encoder.encode(before, continues=False)
    suffix = encoder.encode(chain(*after), continues=True)
    tokens = _assembled(encoder, prefix, conversation.prompt, suffix)
    return replace(tokens, shows_tools=bool(conversation.tools))


def count_tokens(tokenizer: Tokenizer, prompt: Document | Prompt, **options: Any) -> int:
    """Count tokens exactly as :func:`encode` makes them.

    Args:
        tokenizer: a Hugging Face tokenizer.
        prompt: a string or a document counts as text inside a prompt: no BOS, no chat template,
            no markers of documents. A prompt or chat messages count as a whole; a part of a history
            that the chat template refuses by itself counts after a short question, and no message
            as nothing.
        options: those of :func:`encode`; for a prompt or chat messages only.
    """
    if isinstance(prompt, Document):
        prompt = prompt.render()
    elif isinstance(prompt, str):
        prompt = unmark(prompt)
    if isinstance(prompt, str):
        return len(TextEncoder(tokenizer).encode_inert(prompt, continues=True))
    if isinstance(prompt, ContextPrompt):
        return len(encode(tokenizer, prompt, **options))
    try:
        return len(encode(tokenizer, prompt, **options)) if prompt else 0
    except ChatTemplateError:
        if prompt[0]["role"] == "user":
            raise
        return len(encode(tokenizer, [message_of("user", "?"), *prompt], **options))


def _encode_raw(
    encoder: TextEncoder, prompt: ContextPrompt, system: str | None, allow_control_tokens: bool
) -> TokenizedPrompt:
    leading = prompt.prefix if system is None else f"{system}\n\n{prompt.prefix}"
    continues = bool(leading or prompt.documents)
    if allow_control_tokens:
        prefix = encoder.encode([leading], continues=False)
        suffix = encoder.encode([prompt.suffix], continues=continues)
    else:
        prefix = encoder.encode_inert(leading, continues=False)
        suffix = encoder.encode_inert(prompt.suffix, continues=continues)
    return _assembled(encoder, prefix, prompt, suffix)


def _assembled(
    encoder: TextEncoder, prefix: list[int], prompt: ContextPrompt, suffix: list[int]
) -> TokenizedPrompt:
    documents = [
        encoder.encode_inert(document.render() + prompt.separator, continues=True)
        for document in prompt.documents
    ]
    if not any((prefix, suffix, *documents)):
        raise PromptError("The prompt is empty: it has no tokens. Pass a question or documents.")
    start = encoder.start_ids()
    begun = prefix if documents else prefix + suffix
    # Templates mostly write the BOS themselves; a second one would be out of distribution.
    has_start = begun[:1] == start[:1]
    return TokenizedPrompt.assembled(
        prefix=prefix if has_start else start + prefix,
        documents=documents,
        suffix=suffix,
        document_ids=[document.id for document in prompt.documents],
        scores=prompt.scores,
    )


def _warn_of_written_template(prompt: str) -> None:
    """Name a chat template that somebody wrote into a prompt by hand, where it is only text."""
    written = _TURN.match(prompt)
    if written:
        warn_caller(
            ChatTemplateWarning(
                f"The prompt begins with {written[1]!r}, as a chat template written by hand does. "
                "It is read as text, and no turn begins there. Pass chat messages, which the "
                "model's own template writes (with LangChain ChatRagMiddle, with LlamaIndex "
                "completion_to_prompt); or, if all of the text is your own, template='raw' "
                "with allow_control_tokens=True."
            )
        )


def uses_chat_template(tokenizer: Tokenizer, template: Template) -> bool:
    """Whether prompts become turns of a chat, written by the tokenizer's chat template."""
    return template == "chat" or (template == "auto" and has_chat_template(tokenizer))


def _warn_of_unread_options(tokenizer: Tokenizer, options: Mapping[str, Any]) -> None:
    if not options or not isinstance(tokenizer.chat_template, str):
        return
    own = signature(tokenizer.apply_chat_template).parameters
    for name in options:
        if name not in own and not reads_option(tokenizer, name):
            warn_caller(
                ChatTemplateWarning(
                    f"The chat template of this model does not read {name!r}, so that it changes "
                    "nothing: leave it out."
                )
            )


def _check_continued(prompt: object) -> None:
    """Raise `PromptError` unless the last message is one of the model, with some text."""
    last = prompt[-1] if isinstance(prompt, Sequence) and prompt else ""
    if isinstance(last, str) or last.get("role") not in MODEL_ROLES or not last.get("content"):
        raise PromptError(
            "continue_final_message goes on in a last message of the assistant that has some text, "
            "and there is none: add it to the messages, or leave the option out."
        )


def _rewritten(
    asked: ContextPrompt | Conversation,
    rewrite: Callable[[ContextPrompt], ContextPrompt],
    allow_control_tokens: bool,
) -> ContextPrompt | Conversation:
    if isinstance(asked, ContextPrompt):
        changed = rewrite(asked)
        texts = {document.render() for document in asked.documents}
        if allow_control_tokens and any(d.render() not in texts for d in changed.documents):
            # What a caller's own control tokens mean would depend on where a copy of them stands.
            raise PromptError(
                "The method writes the text around the documents once more, and "
                "allow_control_tokens=True lets that text hold control tokens. Leave it out, and "
                "let a chat template write them."
            )
        return changed
    if asked.at is not None:
        return replace(asked, prompt=rewrite(asked.prompt))
    *before, last = asked.messages
    if last["role"] != "user" or not isinstance(last.get("content"), str):
        return asked
    changed = rewrite(ContextPrompt(last["content"]))
    return replace(asked, messages=(*before, {**last, "content": changed.text}))
