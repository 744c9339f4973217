"""The command line as a whole: help, version, start-up, wrong usage."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.text import Text

import rag_middle
from rag_middle.cli.app import app
from rag_middle.cli.console import console, printable_logs
from tests.cli.conftest import Run

COMMANDS = ("ask", "chat", "generate", "index", "methods", "serve", "verify")


def test_help_lists_the_commands(run: Run) -> None:
    shown = run("--help")
    assert shown.status == 0
    assert all(command in shown.out for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(run: Run, command: str) -> None:
    shown = run(command, "--help")
    assert shown.status == 0
    assert ("--json" in shown.out) == (command not in ("chat", "serve"))


def test_help_shows_the_markers_as_they_are_written(run: Run) -> None:
    shown = run("generate", "--help").out
    assert "[[rm:doc]]" in shown
    assert "[[/rm:doc]]" in shown


def test_version(run: Run) -> None:
    assert run("--version").out == f"rag-middle {rag_middle.__version__}\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no full device")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "arguments",
    [["--version"], ["methods", "nothing", "--json"], ["methods", "--json", "--no-such-option"]],
)
def test_results_for_a_full_disk_are_refused_in_one_line(
    arguments: list[str], unbuffered: str
) -> None:
    with open("/dev/full", "wb") as full:
        finished = subprocess.run(
            [sys.executable, "-m", "rag_middle", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert finished.returncode == 2
    assert finished.stderr == (
        "Error: Standard output cannot be written (No space left on device). Free space, or send "
        "it somewhere else.\n"
    )


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no full device")
def test_standard_error_on_a_full_disk_is_a_refusal() -> None:
    with open("/dev/full", "wb") as full:
        finished = subprocess.run(
            [sys.executable, "-m", "rag_middle", "methods", "nothing"],
            stderr=full,
            check=False,
        )
    assert finished.returncode == 2


def test_a_working_directory_that_was_removed_is_named(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    script = (
        "import os\nfrom rag_middle.cli import main\n"
        f"os.mkdir({gone!r})\nos.chdir({gone!r})\nos.rmdir({gone!r})\nmain()"
    )
    for arguments in (["verify", "--method", "siw"], ["index", str(tmp_path)]):
        finished = subprocess.run(
            [sys.executable, "-c", script, *arguments, "--json"], capture_output=True, check=False
        )
        assert finished.returncode == 2
        message = json.loads(finished.stdout)["error"]["message"]
        assert message == "The working directory was removed. Change to one that is there."


def test_standard_output_may_be_closed() -> None:
    script = (
        "import sys\nfrom rag_middle.cli import main\n"
        "sys.stdout, sys.argv = None, ['rag-middle', 'methods']\nmain()"
    )
    finished = subprocess.run(
        [sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, check=False
    )
    assert (finished.returncode, finished.stderr) == (0, "")


def test_standard_input_may_be_closed() -> None:
    script = (
        "import sys\nfrom rag_middle.cli import main\nsys.stdin = None\n"
        "sys.argv = ['rag-middle', 'generate', '--prompt', '-', '--prompt-format', 'json']\nmain()"
    )
    finished = subprocess.run(
        [sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, check=False
    )
    assert finished.returncode == 2
    assert "The prompt in standard input is not valid JSON" in " ".join(finished.stderr.split())


@pytest.mark.slow
def test_help_is_shown_without_loading_torch() -> None:
    script = (
        "import sys\n"
        "from rag_middle.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "print(*sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)), file=sys.stderr)\n"
    )
    for arguments in (
        ["--help"],
        ["generate", "--help"],
        ["ask", "--help"],
        ["--version"],
    ):
        finished = subprocess.run(
            [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True
        )
        assert finished.stdout
        assert finished.stderr == "\n"


def test_wrong_usage_is_told_on_standard_error(run: Run) -> None:
    shown = run("methods", "--jsn")
    assert shown.status == 2
    assert shown.out == ""
    assert "--jsn" in shown.err


def test_a_suggestion_ends_with_its_own_mark(run: Run) -> None:
    assert "Did you mean 'ask'? See --help." in " ".join(run("askk").err.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ("methods", "--json", "--bogus"),
        ("generate", "--json"),
        ("verify", "--json", "--attn-implementation", "flash"),
        ("nonsense", "--json"),
    ],
)
def test_wrong_usage_is_json_where_json_was_asked_for(run: Run, arguments: tuple[str]) -> None:
    shown = run(*arguments)
    assert shown.status == 2
    assert shown.err == ""
    assert shown.json["error"]["type"] == "UsageError"
    assert shown.json["error"]["message"]


def test_errors_show_a_traceback_only_with_debug(run: Run) -> None:
    shown = run("methods", "nonsense")
    assert shown.err.startswith("Error: Unknown method 'nonsense'.")
    assert "Traceback" not in shown.err
    with pytest.raises(rag_middle.UnknownNameError):
        run("methods", "nonsense", "--debug")


@pytest.mark.parametrize("shown", ["name\x1b]0;owned\x07", "a\x1b[2Jb", "\u202etxt"])
def test_the_console_shows_no_control_characters(
    shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    console().print(Text(f"Does {shown} answer?", "bold"))
    written = capsys.readouterr().out
    assert "\ufffd" in written
    assert "\x1b[1m" in written  # our own
    assert not [part for part in ("\x07", "\x1b]", "\x1b[2J", "\u202e") if part in written]


@pytest.mark.parametrize("file", ["docs", "data"])
def test_control_characters_in_a_traceback_do_not_reach_a_terminal(
    file: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = tmp_path / "q\x1b]0;title\x07.jsonl"
    data.write_text('{"question": "no answers"}\n')
    arguments = {
        "data": ["diagnose", "--data", str(data)],  # the message names the file
        "docs": ["ask", "What?", "--docs", __file__, "--model", f"{tmp_path}/\x1b]0;title\x07"],
    }
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with pytest.raises(SystemExit) as ended:
        app([*arguments[file], "--debug"])
    assert ended.value.code == 1
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "]0;title" in shown
    assert not [part for part in ("\x1b]", "\x07") if part in shown]  # the rest is our own style


def test_control_characters_in_what_a_library_logs_do_not_reach_a_terminal(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = logging.getLogger("transformers.models")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with printable_logs():
        log.warning("\x1b[1mmodel\x1b[0m %s", "a\x1b]0;title\x07")
        try:
            raise ValueError("b\x1b]0;title\x07")
        except ValueError:
            log.exception("It failed")
    log.warning("%s", "c\x1b[31m")
    assert "\nmodel a�]0;title�\n" in f"\n{caplog.messages[0]}\n"
    assert "ValueError: b�]0;title�" in caplog.text
    assert caplog.messages[-1] == "c\x1b[31m"


@pytest.mark.skipif(os.name != "posix", reason="needs a terminal of POSIX")
def test_control_characters_in_what_workers_write_do_not_reach_a_terminal() -> None:
    ours, theirs = os.openpty()
    with open(ours, "rb", buffering=0) as terminal:
        try:
            done = subprocess.run(
                [sys.executable, "-m", "tests.cli.loud_workers"],
                cwd=Path(__file__).parents[2],
                stdout=subprocess.PIPE,
                stderr=theirs,
                check=True,
            )
        finally:
            os.close(theirs)
        shown = terminal.read(10_000).decode()
    assert done.stdout == b"[1]\n"
    assert "a�]0;logged�" in shown
    assert "b�]0;warned�" in shown
    assert not [part for part in ("\x07", "\x1b]") if part in shown]
