"""``rag-middle generate`` with a tiny random model."""

import json
from pathlib import Path

import pytest
import torch

from rag_middle.cli.console import print_text
from tests.cli.conftest import Run

TOKENS = "--max-new-tokens", "8"


@pytest.mark.parametrize("method", ["none", "lpes -o factors=[1.2,1.5,1.8]", "ms_poe+siw"])
@pytest.mark.one_in(2)
def test_methods_answer_stream_and_batch_alike(
    run: Run, model: Path, prompt_file: Path, tmp_path: Path, method: str
) -> None:
    other = tmp_path / "other.txt"
    other.write_text("Short. [[rm:doc]]The first document.[[/rm:doc]] Question?")
    named = ("--method", *method.split())
    ask = ("generate", "--model", model, *named, *TOKENS, "--prompt", prompt_file)

    whole = run(*ask)
    streamed = run(*ask, "--stream")
    batched = run(*ask, "--prompt", other, "--json")

    assert whole.status == streamed.status == batched.status == 0
    assert whole.out.strip()
    assert streamed.out == whole.out
    assert whole.err == batched.err == ""
    assert len(batched.json) == 2
    assert batched.json[0]["text"] + "\n" == whole.out
    assert batched.json[0]["method"].startswith(method.split()[0])
    assert batched.json[0]["applied"] is (method != "none")


def test_without_a_model_the_default_one_answers(
    run: Run, model: Path, prompt_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rag_middle.small_model.default_model", lambda: str(model))
    shown = run("generate", "-p", prompt_file, "--max-new-tokens", 2)
    assert shown.status == 0
    assert shown.out.strip()
    assert "SmolLM2-135M-Instruct, a very small one" in shown.err
    assert run("generate", "-p", prompt_file, "--max-new-tokens", 2, "--json").err == ""


def test_standard_input_and_json_prompts(run: Run, model: Path, prompt_file: Path) -> None:
    content = {
        "prefix": "Answer from the documents.\n\n",
        "documents": ["Paris is the capital of France.", {"text": "Lyon lies on the river."}],
        "suffix": "Question: which of the documents answers the question?",
    }
    from_text = run("generate", "-m", model, "-p", prompt_file, *TOKENS)
    from_json = run("generate", "-m", model, "-p", "-", *TOKENS, input=json.dumps(content))
    assert from_json.out == from_text.out


@pytest.mark.thorough
def test_options_reach_the_model(
    run: Run, model: Path, prompt_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = ("generate", "-m", model, "-p", prompt_file, "--json", "--max-new-tokens", "12")
    text = run(*ask).json["text"]
    stop = text[3]
    stopped = run(*ask, "--stop", stop).json
    assert stopped["text"] == text[: text.index(stop)]
    assert stopped["stop"] == stop
    assert run(*ask, "--repetition-penalty", "0.05").json["text"] != text
    assert run(*ask, "--beams", "3").json["text"] != text
    threads: list[int] = []
    with monkeypatch.context() as patched:
        patched.setattr("torch.set_num_threads", threads.append)
        assert run(*ask, "--threads", "2").json["text"] == text
    assert threads == [2, torch.get_num_threads()]
    system = run(*ask, "--system", "You are a helpful assistant.").json
    assert system["usage"]["prompt_tokens"] > run(*ask).json["usage"]["prompt_tokens"]


# --- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (("--method", "lpes"), "MethodConfigError", "rag-middle calibrate --method lpes"),
        (("--max-new-tokens", "100000"), "ContextOverflowError", "--on-overflow drop_documents"),
    ],
)
def test_errors_are_one_message_and_status_2(
    run: Run, model: Path, prompt_file: Path, arguments: tuple[str, ...], kind: str, message: str
) -> None:
    shown = run("generate", "-m", model, "-p", prompt_file, *arguments)
    assert shown.status == 2
    assert shown.out == ""
    assert shown.err.startswith("Error: ")
    assert message in shown.err
    error = run("generate", "-m", model, "-p", prompt_file, *arguments, "--json").json["error"]
    assert error["type"] == kind
    assert message in error["message"]


def test_control_characters_do_not_reach_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "line\n\ttab \x1b[31mred\x1b]0;title\x07 \x9b2J\r"
    print_text(text, end="")
    assert capsys.readouterr().out == text  # a file or pipe gets what was generated
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_text(text, end="")
    assert capsys.readouterr().out == "line\n\ttab �[31mred�]0;title� �2J�"
