"""What ``rag-middle generate`` does once everything is checked: load, answer, show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rag_middle.cli.console import console, print_json, print_text, quiet_progress_bars
from rag_middle.cli.options import placed
from rag_middle.wording import counted

if TYPE_CHECKING:
    from rag_middle.documents import ContextPrompt
    from rag_middle.generation import Generation, RagMiddleModel
    from rag_middle.tokens import TokenizedPrompt

__all__ = [
    "answer_all",
    "load_model",
    "print_answers",
    "show_facts",
    "show_prompt",
    "stream_answer",
]


def load_model(name: str, **how: Any) -> RagMiddleModel:
    """The model and its tokenizer, under a method; progress bars on a terminal only.

    Args:
        name: directory or hub name.
        how: arguments of ``RagMiddleModel.from_pretrained``; device as on the command line.

    Raises:
        RagMiddleError: it cannot be loaded, or cannot take the method.
    """
    from rag_middle.generation import RagMiddleModel
    from rag_middle.generation.loading import loading_errors

    quiet_progress_bars()
    with loading_errors(name):
        return RagMiddleModel.from_pretrained(name, **placed(how))


def show_prompt(model: RagMiddleModel, tokens: TokenizedPrompt) -> None:
    """Show a prompt's tokens on standard error."""
    from rag_middle.cli.token_view import show_tokens

    show_tokens(console(stderr=True), model.tokenizer, tokens)


def print_answers(
    model: RagMiddleModel, answers: list[Generation], tokens: list[TokenizedPrompt]
) -> None:
    """Print JSON: an object for one prompt, a list for several.

    Args:
        model: whose answers they are.
        answers: one per prompt.
        tokens: of each prompt; empty where they are not to be shown.
    """
    from rag_middle.cli.token_view import described_tokens

    described = [answer.to_dict() for answer in answers]
    if tokens:
        for answer, each in zip(described, tokens, strict=True):
            answer["tokens"] = described_tokens(model.tokenizer, each)
    print_json(described[0] if len(described) == 1 else described)


def answer_all(
    model: RagMiddleModel,
    sources: list[str],
    prompts: list[ContextPrompt],
    options: dict[str, Any],
) -> list[Generation]:
    """Answer several prompts together and print each answer under its file's name."""
    answers = model.batch(prompts, **options)
    for source, answer in zip(sources, answers, strict=True):
        print_text(f"==> {source} <==\n{answer.text}\n\n")
    return answers


def stream_answer(
    model: RagMiddleModel, prompt: ContextPrompt, options: dict[str, Any]
) -> Generation:
    """Answer one prompt and print the text as it comes."""
    with model.stream(prompt, **options) as pieces:
        for piece in pieces:
            print_text(piece)
        print()
        return pieces.result


def show_facts(answer: Generation, *, retrieve: float | None = None) -> None:
    """One line about an answer, on standard error.

    Args:
        answer: what it is about.
        retrieve: seconds spent on finding its documents, if they were searched for.
    """
    from rich.text import Text

    idle = not answer.applied and answer.method != "none"
    facts = [
        f"{answer.method} (without effect on this prompt)" if idle else answer.method,
        f"{counted(answer.usage.prompt_tokens, 'prompt token')} in "
        f"{counted(answer.documents, 'document')}",
        f"{answer.usage.completion_tokens} generated ({answer.finish_reason})",
        *([] if retrieve is None else [f"retrieval {retrieve:.2f} s"]),
        f"time to first token {answer.timings.time_to_first_token:.2f} s",
        f"{answer.tokens_per_second:.1f} tokens/s",
    ]
    if answer.dropped_documents:
        facts.append(f"{counted(len(answer.dropped_documents), 'document')} dropped")
    if answer.seed is not None:
        facts.append(f"seed {answer.seed}")
    console(stderr=True).print(Text(" · ".join(facts), "dim"), soft_wrap=True)
