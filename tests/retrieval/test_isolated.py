"""Files that take the process that reads them too far cost one file each, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from zipfile import ZipFile

import pytest

from rag_middle.errors import DocumentLoadError, MissingExtraError
from rag_middle.notices import ReadingWarning
from rag_middle.retrieval import Loaded, Record, content_hash, formats, isolated, load
from rag_middle.retrieval.isolated import Reading

pytestmark = pytest.mark.skipif(not isolated._POSSIBLE, reason="no limits here")
needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no list of processes")

_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_MAIN = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"

HOSTILE = "tests.retrieval.hostile_reader"
REASONS = {
    "loop": "reading it takes more than 0 seconds. Split it, or save it as text.",
    "expression": "reading it takes more than 0 seconds. Split it, or save it as text.",
    "sleep": "reading it takes more than 0 seconds. Split it, or save it as text.",
    "exit": "it ends the process that reads it (exit status 7): it is damaged, nested too deeply, "
    "or takes too much memory. Save it as text, or remove it.",
    "raise": "it ends the process that reads it (exit status 0): it is damaged, nested too deeply, "
    "or takes too much memory. Save it as text, or remove it.",
    "crash": "it ends the process that reads it (SIGSEGV): it is damaged, nested too deeply, or "
    "takes too much memory. Save it as text, or remove it.",
    "long": "its text has more than 16 MiB, much more than the file. Save it as text, or remove "
    "it.",
}
if sys.platform == "linux":  # elsewhere memory is not limited
    REASONS["allocate"] = "it takes too much memory to read. Split it, or save it as text."


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated, "_SERVES", HOSTILE)
    monkeypatch.setattr(isolated, "_SECONDS", 0.3)
    monkeypatch.setattr(isolated, "_MEMORY", 2**28)


def _texts(loaded: Loaded) -> dict[str, str]:
    return {record.source: record.text for record in loaded.records}


def _folder(path: Path, *contents: str) -> Path:
    path.mkdir()
    for number, content in enumerate(contents):
        (path / f"{number}.html").write_text(content)
    return path


@pytest.mark.parametrize("content", REASONS)
@pytest.mark.usefixtures("hostile")
def test_a_file_that_takes_its_reader_too_far_is_left_out_with_a_reason(
    content: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ignored = signal.signal(signal.SIGXCPU, signal.SIG_IGN)  # passed on to every new process
    try:
        loaded = load(_folder(tmp_path / "a", "first", content, "last"))
        assert _texts(loaded) == {"0.html": "first", "2.html": "last"}
        [skipped] = loaded.skipped
        assert (skipped.source, skipped.reason) == ("1.html", REASONS[content])
        with pytest.raises(DocumentLoadError) as raised:
            load(tmp_path / "a" / "1.html")
        assert str(raised.value).endswith(f"cannot be loaded: {REASONS[content]}")
    finally:
        signal.signal(signal.SIGXCPU, ignored)
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("hostile")
def test_what_was_left_out_by_chance_is_read_another_time(tmp_path: Path) -> None:
    chances = {"killed": True, "sleep": True, "crash": False, "loop": False}
    for content, is_chance in chances.items():
        folder = _folder(tmp_path / content, "first", content)
        loaded = load(folder)
        assert len(loaded.skipped) == 1
        assert (loaded.content_hash != content_hash(folder)) == is_chance


@pytest.mark.usefixtures("hostile")
def test_what_a_file_leaves_behind_harms_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load(_folder(tmp_path / "a", "leave", "meet", "last"))
    assert list(_texts(loaded).values()) == ["leave", "meet", "last"]
    assert not loaded.skipped
    if sys.platform == "linux":
        monkeypatch.setattr(isolated, "_MEMORY", 2**30)
        loaded = load(_folder(tmp_path / "b", "grow", "need", "last"))
        assert list(_texts(loaded).values()) == ["grow", "need", "last"]


@pytest.mark.skipif(sys.platform != "linux", reason="memory is not limited here")
def test_a_word_document_that_unpacks_to_too_much_is_left_out(tmp_path: Path) -> None:
    docx = pytest.importorskip("docx")
    docx.Document().save(str(tmp_path / "b.docx"))
    with ZipFile(tmp_path / "b.docx") as saved, ZipFile(tmp_path / "a.docx", "w", 8) as file:
        for name in saved.namelist():
            content = saved.read(name).replace(b"<w:body>", b"<w:body>" + b"<w:p/>" * 8_000_000)
            file.writestr(name, content)
    with pytest.raises(DocumentLoadError, match="takes too much memory to read"):
        load(tmp_path / "a.docx")


def test_records_come_back_as_they_are_read(tmp_path: Path) -> None:
    line = '{"text": "a\\u0001\U0001f600", "n": ["\\ud83d", "\\ude00", 1e-9, -0.0, 9876543210987]}'
    contents = {
        "a.md": "# One\n\nText \u2028 \x85 it\n\n## Two\n\nMore\n",
        "a.rst": "One\n===\n\nText\n\nTwo\n---\n\nMore\n",
        "a.html": "<h1>\U0001f600</h1><p>x<sup>2</sup>&#1;",
        "a.jsonl": f'{line}\nwrong\n{{"text": "b", "title": "T", "metadata": {{"k": null}}}}\n',
    }
    for name, content in contents.items():
        path = tmp_path / name
        path.write_text(content)
        here = list(formats.parsed(path.read_bytes(), path.suffix, name))
        with Reading() as reading:
            *there, more = reading.read(path.read_bytes(), path.suffix, name)
        assert (there, more) == (here, 0)
        assert [repr(item) for item in there] == [repr(item) for item in here]
        assert all(isinstance(item.headings, tuple) for item in there if isinstance(item, Record))


def test_a_package_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pypdf.py").write_text("raise ModuleNotFoundError(name='pypdf')")
    (tmp_path / "a.pdf").write_bytes(b"%PDF-1.4")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtraError, match=r"^Reading PDF needs the package pypdf") as raised:
        load(tmp_path / "a.pdf")
    assert (raised.value.package, raised.value.extra) == ("pypdf", "demo")


@pytest.mark.parametrize("executable", ["", None, "/nowhere/python", "false", "waits"])
def test_where_no_python_can_be_started_files_are_read_with_a_warning(
    executable: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if executable == "false":
        executable = "/bin/false"
    elif executable == "waits":
        monkeypatch.setattr(isolated, "_START_SECONDS", 0.2)
        script = tmp_path / "waits"
        script.write_text("#!/bin/sh\nexec sleep 1000\n")
        script.chmod(0o755)
        executable = str(script)
    folder = _folder(tmp_path / "a", "first", "last")
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.warns(ReadingWarning, match="read in this one") as warned:
        loaded = load(folder)
    assert len(warned) == 1
    assert list(_texts(loaded).values()) == ["first", "last"]


@pytest.mark.usefixtures("hostile")
def test_a_file_is_not_read_here_because_no_second_process_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Reading() as reading:
        assert list(reading.read(b"first", ".html", "a"))
        monkeypatch.setattr(sys, "executable", "")
        [skipped] = reading.read(b"exit", ".html", "b")
    assert "no process can be started to read it" in str(skipped)


def test_plain_text_starts_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated, "start_process", lambda *_, **__: pytest.fail("started"))
    (tmp_path / "a.txt").write_text("Text.")
    (tmp_path / "README").write_text("More.")
    assert len(load(tmp_path).records) == 2


@pytest.mark.usefixtures("hostile")
def test_threads_read_beside_each_other(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "a", "first", "exit", "last")
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(load, [folder] * 8))
    assert all(result == results[0] for result in results)
    assert len(results[0].records) == 2


def _children(parent: int) -> set[int]:
    children = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            _, its_parent, *_ = (process / "stat").read_text().rpartition(")")[2].split()
            if int(its_parent) == parent:
                children.add(int(process.name))
    return children


def _is_alive(process: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _await(holds: Callable[[], object]) -> None:
    until = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


@needs_proc
@pytest.mark.usefixtures("hostile")
def test_no_process_and_no_descriptor_is_left(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "a", "first", "exit", "long", "crash", "last")
    load(folder)
    before = len(os.listdir("/proc/self/fd")), _children(os.getpid())
    for _ in range(3):
        load(folder)
        with pytest.raises(DocumentLoadError):
            load(folder / "1.html")
    assert (len(os.listdir("/proc/self/fd")), _children(os.getpid())) == before


def _run(script: str, *arguments: object, wait: bool = True) -> subprocess.Popen[bytes]:
    """A process of its own, in which files say what is done."""
    begin = (
        "import os, sys, signal; from rag_middle.retrieval import isolated, load\n"
        f"isolated._SERVES = {HOSTILE!r}\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", begin + script, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE,
    )
    if wait:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors.decode()
    return process


@needs_proc
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("content", ["loop", "expression"])
def test_the_reader_ends_with_its_caller(by: signal.Signals, content: str, tmp_path: Path) -> None:
    process = _run("load(sys.argv[1])", _folder(tmp_path / "a", "first", content), wait=False)
    _await(lambda: _children(process.pid))
    [reader] = _children(process.pid)
    if by == signal.SIGINT:  # as Ctrl-C does, to all that the terminal reaches
        assert os.getpgid(reader) != os.getpgid(process.pid)
    clock = Path(f"/proc/{reader}/stat")
    _await(lambda: int(clock.read_text().rpartition(")")[2].split()[11]) > 50)  # is at work
    process.send_signal(by)
    _, errors = process.communicate(timeout=20)
    assert (b"KeyboardInterrupt" in errors) == (by == signal.SIGINT)
    _await(lambda: not _is_alive(reader))


@pytest.mark.parametrize(
    "before",
    [
        "os.close(0); os.close(1)",
        "os.close(0); os.close(1); os.close(2)",
        "os.closerange(0, 3); os.open(os.devnull, os.O_RDWR)",
        "import tempfile; f = tempfile.mkdtemp(); os.chdir(f); os.rmdir(f)",
        "os.chdir('/'); sys.path.insert(0, '')",
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
        "import resource; resource.setrlimit(resource.RLIMIT_CPU, (90, 100))",
        "os.environ['PYTHONWARNINGS'] = 'error'; os.environ['PYTHONINSPECT'] = '1'",
    ],
)
def test_files_are_read_wherever_the_caller_stands(before: str, tmp_path: Path) -> None:
    script = (
        f"{before}\n"
        "loaded = load(sys.argv[1])\n"
        "skipped, = loaded.skipped\n"
        "texts = [record.text for record in loaded.records]\n"
        "os._exit(not (texts == ['first', 'last'] and 'ends the process' in skipped.reason))"
    )
    _run(script, _folder(tmp_path / "a", "first", "exit", "last"))


@pytest.mark.parametrize("entry", ["", "."])
def test_files_beside_the_documents_are_no_modules_of_the_reader(
    entry: str, tmp_path: Path
) -> None:
    folder = _folder(tmp_path / "a", "first")
    for name in ("ctypes", "pypdf", "signal", "struct"):
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / name)!r}, 'w')")
    before = f"import os; os.chdir(sys.argv[1]); sys.path.insert(0, {entry!r})"
    process = _run(f"{before}; assert len(load('.').records) == 1", folder)
    assert process.returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_the_reason_quotes_little_of_a_file(tmp_path: Path) -> None:
    pytest.importorskip("docx")
    main = f'<Relationship Id="a" Type="{_MAIN}" Target="{"x" * 1_000_000}"/>'
    with ZipFile(tmp_path / "a.docx", "w", 8) as file:
        file.writestr("[Content_Types].xml", f'<Types xmlns="{_PACKAGE}/content-types"/>')
        file.writestr(
            "_rels/.rels", f'<Relationships xmlns="{_PACKAGE}/relationships">{main}</Relationships>'
        )
    with pytest.raises(DocumentLoadError) as raised:
        load(tmp_path / "a.docx")
    assert "xxx" in str(raised.value)
    assert len(str(raised.value)) < 1000


def test_a_script_that_is_taken_for_a_library_starts_one_process(tmp_path: Path) -> None:
    """The process that reads Word documents imports the script in the place of python-docx."""
    script, document = tmp_path / "docx.py", tmp_path / "a" / "a.docx"
    document.parent.mkdir()
    document.write_bytes(b"PK")
    script.write_text(f"from rag_middle.retrieval import load\nload({str(document)!r})\n")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert "DocumentLoadError" in done.stderr
