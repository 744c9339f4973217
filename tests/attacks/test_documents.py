"""Files that ask for minutes, gigabytes or a crash are left out with a reason; the rest is read."""

from __future__ import annotations

import json
import tracemalloc
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from time import process_time

import pytest

from rag_middle.retrieval import Record, Skipped, Splitter, build_index, formats, isolated, load
from rag_middle.retrieval.records import content_id, span_ids
from tests.attacks.hostile import report, tries
from tests.retrieval.embedding import HashingEmbedder

MIB = 2**20
SIZE = 20_000 * min(tries(1), 20)  # repetitions; what is not linear takes minutes
LONG = MIB // 4 * min(tries(1), 40)


def pdf(*objects: bytes) -> bytes:
    content, offsets = b"%PDF-1.4\n", []
    for number, each in enumerate(objects, start=1):
        offsets.append(len(content))
        content += b"%d 0 obj\n%b\nendobj\n" % (number, each)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    size = len(objects) + 1
    return (
        content
        + b"xref\n0 %d\n0000000000 65535 f \n%b" % (size, table)
        + b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (size, len(content))
    )


CATALOG = b"<< /Type /Catalog /Pages 2 0 R >>"
ONE_PAGE = b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>"


def stream(content: bytes, more: bytes = b"", length: int | None = None) -> bytes:
    length = len(content) if length is None else length
    return b"<< /Length %d %b >>\nstream\n%b\nendstream" % (length, more, content)


def page(contents: bytes, more: bytes = b"") -> bytes:
    sheet = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 4 0 R %b >>" % more
    return pdf(CATALOG, ONE_PAGE, sheet, contents)


def bomb(content: bytes, layers: int = 1) -> bytes:
    for _ in range(layers):
        content = zlib.compress(content, 9)
    return stream(content, b"/Filter [%b]" % (b"/FlateDecode " * layers))


def forms_that_draw_forms() -> bytes:
    def form(number: int) -> bytes:
        inner = b"/Resources << /XObject << /X %d 0 R >> >>" % (number + 1)
        return stream(b"/X Do /X Do", b"/Type /XObject /Subtype /Form " + inner)

    sheet = (
        b"<< /Type /Page /Parent 2 0 R /Contents 4 0 R /Resources << /XObject << /X 5 0 R >> >> >>"
    )
    text = stream(b"BT (x) Tj ET", b"/Type /XObject /Subtype /Form")
    forms = [form(number) for number in range(5, 30)]
    return pdf(CATALOG, ONE_PAGE, sheet, stream(b"/X Do"), *forms, text)


def shared_pages(count: int) -> bytes:
    """Many pages that all show one page's worth of work."""
    kids = b" ".join(b"%d 0 R" % (4 + number) for number in range(count))
    pages = b"<< /Type /Pages /Kids [%b] /Count %d >>" % (kids, count)
    contents = bomb(b"BT " + b"(x) Tj " * 3000 + b"ET")
    sheet = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 3 0 R >>"
    return pdf(CATALOG, pages, contents, *[sheet] * count)


PDFS: dict[str, Callable[[], bytes]] = {
    "bomb.pdf": lambda: page(bomb(b" " * (80 * MIB))),
    "double bomb.pdf": lambda: page(bomb(b" " * (80 * MIB), layers=2)),
    "declared.pdf": lambda: page(stream(b"BT ET", length=10**12)),
    "deep array.pdf": lambda: pdf(b"<< /X " + b"[" * 100_000 + b"]" * 100_000 + b" >>"),
    "deep page.pdf": lambda: page(bomb(b"BT " + b"[" * 300_000)),
    "pages in themselves.pdf": lambda: pdf(
        CATALOG, b"<< /Type /Pages /Kids [2 0 R 2 0 R] /Count 1 >>"
    ),
    "pages of pages.pdf": lambda: pdf(
        CATALOG,
        *[b"<< /Type /Pages /Kids [%d 0 R %d 0 R] /Count 2 >>" % (n, n) for n in range(3, 30)],
        b"<< /Type /Page >>",
    ),
    "reference to itself.pdf": lambda: pdf(CATALOG, b"2 0 R"),
    "contents in itself.pdf": lambda: page(b"[4 0 R 4 0 R]"),
    "forms.pdf": forms_that_draw_forms,
    "pages without end.pdf": lambda: shared_pages(2000),
    "earlier table.pdf": lambda: (
        b"%PDF-1.4\nxref\n0 1\n0000000000 65535 f \n"
        b"trailer\n<< /Size 1 /Root 1 0 R /Prev 9 >>\nstartxref\n9\n%%EOF\n"
    ),
    "long table.pdf": lambda: (
        b"%PDF-1.4\nxref\n0 999999999\n0000000000 65535 f \ntrailer\n<< /Size 999999999 >>\n"
        b"startxref\n9\n%%EOF\n"
    ),
    "zip.pdf": lambda: b"PK\x03\x04" + b"\x00" * 1000,
}
HTML = {
    "deep.html": b"<div>" * SIZE + b"x" + b"</div>" * SIZE,
    "unseen.html": b"<svg>" * SIZE + b"</math>" * SIZE + b"<body>x",
    "open tags.html": b"<a " * SIZE,
    "less than.html": b"<" * SIZE + b"x",
    "comments.html": b"<!--" * SIZE,
    "declarations.html": b"<![" * SIZE,
    "instructions.html": b"<?" * SIZE,
    "end tags.html": b"</" * SIZE,
    "raw.html": b"<script>" + b"</scrip " * SIZE,
    "quotes.html": b'<a =">" ' * SIZE,
    "half quotes.html": b"<a ='>x" * SIZE,
    "references.html": b"x&#" + b"9" * SIZE + b"; &#x" + b"f" * SIZE + b";" + b"&a" * SIZE,
    "title.html": b"<title>" * SIZE + b"x",
    "areas.html": b"<textarea></textarea x" * SIZE,
    "empty comments.html": b"<!--><!--->" * SIZE + b"x",
    "data.html": b"<svg>" + b"<![CDATA[" * SIZE,
    "templates.html": b"<template>" * SIZE + b"</template>" * SIZE + b"x",
    "readings.html": b"<ruby>x<rt>" * SIZE + b"</ruby>" * SIZE,
}
TEXT = {
    "long line.txt": b"x" * LONG,
    "blank lines.txt": b"\n" * LONG + b"x",
    "zero.txt": b"text\x00text",
    "bytes.txt": b"\xff\xfe\x80" * 100,
    "accents.txt": b"e" + "\u0301".encode() * SIZE,
    "front.md": b"---\n" + b"a\n" * SIZE,
    "hashes.md": b"#" * LONG,
    "quotes.md": b"> " * SIZE + b"x",
    "brackets.md": b"# " + b"[" * 5000,
    "emphasis.md": b"# " + b"*a **b " * SIZE,
    "digits.jsonl": b'{"text": "x", "n": ' + b"9" * MIB + b"}",
    "large.jsonl": b'{"text": "x", "n": 1e999}\n{"text": "x", "n": NaN}',
    "deep.jsonl": b'{"text": "x", "n": ' + b"[" * 900 + b"]" * 900 + b"}",
    "deeper.jsonl": b'{"a":' * SIZE,
    "halves.jsonl": b'{"text": "\\ud800"}\n{"text": "y", "\\ud800": "\\udfff"}',
    "long.jsonl": b'{"text": "' + b"y" * LONG + b'"}',
    "archive.zip": b"PK\x03\x04" + b"\x00" * 1000,
}
LEFT_OUT = {
    *(name for name in PDFS if name != "deep page.pdf"),
    "zero.txt",
    "bytes.txt",
    "digits.jsonl:1",
    "large.jsonl:1",
    "large.jsonl:2",
    "deep.jsonl:1",
    "deeper.jsonl:1",
    "halves.jsonl:1",
    "archive.zip",
}


@pytest.mark.slow
def test_hostile_files_are_left_out_with_a_reason_and_the_rest_is_indexed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("faiss")
    monkeypatch.setattr(isolated, "_SECONDS", 5.0)  # those that have no end need not have 30
    contents = {name: make() for name, make in PDFS.items()} | HTML | TEXT
    folder = tmp_path / "documents"
    folder.mkdir()
    (folder / "good.txt").write_text("A good document about rivers.")
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    built = build_index(folder, tmp_path / "index", embedder=HashingEmbedder(8))
    assert built.index.search("rivers", 500)
    skipped = {item.source: item.reason for item in built.skipped}
    assert set(skipped) >= LEFT_OUT
    assert all(reason.count("\n") == 0 and len(reason) < 500 for reason in skipped.values())
    indexed = {chunk.source for chunk in built.index.chunks}
    assert {"good.txt", "long line.txt", "long.jsonl", "half quotes.html", "front.md"} <= indexed
    report(
        f"{len(contents)} hostile files, of {max(map(len, contents.values())) >> 20} MiB at most"
    )


#: Begin, what is repeated, end: what an expression that tries every length of a run is slow at.
RUNS = {
    "md": [("# a", " ", "x"), ("# a", " #", "x"), ("#", "\t", "x"), ("", "# ", ""), ("", "`", "")],
    "rst": [("a\n=", "=", " x"), ("a\n==", " ", "x"), ("", "=\n", ""), ("a", " ", "\n==")],
    "html": [
        ("", "<a", ""),
        ("<a =", " ", ""),
        ("<a ", "= ", ""),
        ("<a ", "=\"'", ""),
        ("", "&", ""),
        ("", "<title>", ""),
        ("<textarea>", "</textarea", ""),
        ("", "<!--a--!", ""),
        ("<svg>", "<![CDATA[", ""),
        ("<template>" * 100, "<i>", ""),
        ("", "<svg><text><p>", ""),
        ("", "<template>", "</template>"),
        ("<math><mfrac linethickness=", " ", "x><mi>a</mi><mi>b</mi></mfrac></math>"),
        ("<math><mfrac linethickness=", "0", "1><mi>a</mi><mi>b</mi></mfrac></math>"),
    ],
    "markdown": [
        ("---\n", "--- \t", ""),
        ("---", " ", "x"),
        ("---\n...", " ", "x"),
        ("", "[[~", ""),
    ],
}


@pytest.mark.parametrize(
    ("suffix", "run"), [(suffix, run) for suffix, runs in RUNS.items() for run in runs]
)
@pytest.mark.one_in(5)
def test_long_runs_of_a_character_take_no_longer_than_other_text(
    suffix: str, run: tuple[str, str, str]
) -> None:
    begin, repeated, end = run
    content = f"{begin}{repeated * (200_000 // len(repeated))}{end}\nLast.".encode()
    started = process_time()
    list(formats.READERS[f".{suffix}"](content, f"a.{suffix}"))
    assert process_time() - started < 10  # a tenth of a second; where it is quadratic, minutes


@pytest.mark.parametrize(
    ("begin", "repeated"),
    [
        ("a: ", '"\\UFFFFFFFF"'),
        ("a: ", "["),
        ("a: ", "{"),
        ("a: [", "b, "),
        ("a: x\n", "? "),
        ("a: '", "''"),
        ("a:", " :"),
    ],
)
def test_hostile_front_matter_takes_no_longer_than_other_text(begin: str, repeated: str) -> None:
    fields = begin + repeated * (65_000 // len(repeated))
    started = process_time()
    [record] = formats.READERS[".md"](f"---\n{fields}\n---\nLast.".encode(), "a.md")
    assert isinstance(record, Record)
    assert record.text.endswith("Last.")
    assert process_time() - started < 10  # a second; YAML is read slowly, therefore up to a length


@pytest.mark.slow  # memory is counted object by object
def test_front_matter_without_an_end_takes_no_more_memory_than_other_text() -> None:
    content = b"---\n" + b"a\n" * MIB
    list(formats.parsed(content, ".md", "page.md"))  # imports
    tracemalloc.start()
    try:
        list(formats.parsed(content, ".md", "page.md"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40 * MIB  # for a file of two


WORD = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
MATH = 'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"'


def word(body: str, styles: str = "") -> bytes:
    document = pytest.importorskip("docx").Document()
    parse = pytest.importorskip("docx.oxml").parse_xml
    for element in parse(f"<w:body {WORD} {MATH}>{body}</w:body>"):
        document.element.body.insert(-1, element)
    for element in parse(f"<w:styles {WORD}>{styles}</w:styles>"):
        document.styles.element.append(element)
    file = BytesIO()
    document.save(file)
    return file.getvalue()


def chain_of_styles(count: int) -> str:
    links = "".join(
        f'<w:style w:styleId="s{at}"><w:basedOn w:val="s{at + 1}"/></w:style>'
        for at in range(count)
    )
    raised = '<w:rPr><w:vertAlign w:val="superscript"/></w:rPr>'
    return f'{links}<w:style w:styleId="s{count}">{raised}</w:style>'


@pytest.mark.parametrize(
    ("begin", "repeated", "end", "styles"),
    [
        ("<w:p><w:r>", "<w:t>a</w:t>", "</w:r></w:p>", 0),
        ("<w:p><m:oMath><m:r>", "<m:t>\uf061</m:t>", "</m:r></m:oMath></w:p>", 0),
        ("<w:p>", '<w:r><w:rPr><w:rStyle w:val="s0"/></w:rPr><w:t>a</w:t></w:r>', "</w:p>", 10_000),
    ],
)
@pytest.mark.one_in(3)
def test_a_paragraph_of_many_parts_takes_no_longer_than_many_paragraphs(
    begin: str, repeated: str, end: str, styles: int
) -> None:
    content = word(begin + repeated * 50_000 + end, chain_of_styles(styles) if styles else "")
    started = process_time()
    [record, *_] = formats.READERS[".docx"](content, "a.docx")
    assert isinstance(record, Record)
    assert len(record.text) >= 50_000
    assert process_time() - started < 10  # a second; where it is quadratic, minutes


@pytest.mark.parametrize("suffix", [".html", ".docx"])
def test_what_stands_between_the_parts_of_an_equation_is_a_sign(suffix: str) -> None:
    sign, times = "+" * 20_000, 2000
    if suffix == ".html":
        parts = "<mi>a</mi>" * times
        content = f'<p>x<math><mfenced separators="{sign}">{parts}</mfenced></math>'.encode()
    else:
        parts = "<m:e><m:r><m:t>a</m:t></m:r></m:e>" * times
        signs = f'<m:dPr><m:sepChr m:val="{sign}"/></m:dPr>'
        content = word(f"<w:p><m:oMath><m:d>{signs}{parts}</m:d></m:oMath></w:p>")
    [record, *_] = formats.READERS[suffix](content, f"a{suffix}")
    assert isinstance(record, Record)
    assert len(record.text) < 10 * times


def test_text_of_an_equation_between_comments_takes_no_longer_than_other_text() -> None:
    content = ("<math>" + "\U0001f600<!---->" * 400_000).encode()
    started = process_time()
    [record] = formats.READERS[".html"](content, "a.html")
    assert isinstance(record, Record)
    assert len(record.text) == 400_000
    assert process_time() - started < 10


LONG_WORDS = "long words " * 2000


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.html", f"<title>{LONG_WORDS}</title><p>{LONG_WORDS}"),
        ("a.html", f"<h1>{LONG_WORDS}</h1><p>{LONG_WORDS}"),
        ("a.md", f"# {LONG_WORDS}\n\n{LONG_WORDS}"),
        ("a.md", f"---\ntitle: {LONG_WORDS}\n---\n{LONG_WORDS}"),
        ("a.md", f"Text.\n\n# {LONG_WORDS}\n\n{LONG_WORDS}"),
        ("a.rst", f"{LONG_WORDS}\n{'=' * len(LONG_WORDS)}\n\n{LONG_WORDS}"),
        ("a.docx", f"# {LONG_WORDS}\n\n{LONG_WORDS}"),
        ("a.jsonl", f'{{"text": "Text", "title": "{LONG_WORDS}"}}'),
        ("a.jsonl", f'{{"text": "{LONG_WORDS * 10}", "more": "{LONG_WORDS}"}}'),
    ],
)
def test_what_is_kept_with_every_part_of_a_text_is_short(
    tmp_path: Path, name: str, content: str
) -> None:
    """A megabyte of title and a megabyte of text would be a gigabyte of parts."""
    (tmp_path / "good.txt").write_text("Good.")
    if name == "a.docx":
        heading, text = content.removeprefix("# ").split("\n\n")
        document = pytest.importorskip("docx").Document()
        document.add_heading(heading, 1)
        document.add_paragraph(text)
        document.save(str(tmp_path / name))
    else:
        (tmp_path / name).write_text(content)
    records = load(tmp_path).records
    chunks = Splitter().split(records)
    kept = sum(len(chunk.title or "") + len(json.dumps(chunk.metadata)) for chunk in chunks)
    assert kept < 20_000
    if name.startswith("a.j"):
        assert [record.source for record in records] == ["good.txt"]
    elif "<title>" not in content and "title:" not in content:
        assert sum(record.text.count("long") for record in records) == 4000  # none is lost


def test_a_text_is_not_read_once_more_for_each_of_its_parts() -> None:
    text = "some words of it\n" * 400_000
    splitter = Splitter(chunk_size=100, overlap=0)
    record = Record(text=text, source="a.txt", first_line=1)
    started = process_time()
    ids = span_ids(record.source, record.title, record.text)
    places = [(ids(at, at + 9), record.location(at, at + 9)) for at in range(0, len(text), 100)]
    assert process_time() - started < 10  # half a second; where it is quadratic, an hour
    assert places[-1][1]["first_line"] == text.count("\n", 0, 68_000 * 100 - 100) + 1
    [chunk] = splitter.split([Record(text="Lyon.", source="a.txt", title="T")])
    assert chunk.id == content_id("a.txt", "T", "Lyon.", 0, 5)


def test_many_wrong_lines_are_counted(tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_text("Good.")
    (tmp_path / "a.jsonl").write_text("x\n" * 5000 + '{"text": "y"}\n' * 5000)
    (tmp_path / "b.jsonl").write_text("x\n")
    loaded = load(tmp_path)
    assert [record.source for record in loaded.records] == ["a.jsonl", "good.txt"]
    assert [skipped.source for skipped in loaded.skipped[999:]] == [
        "a.jsonl:1000",
        "a.jsonl",
        "b.jsonl:1",
    ]
    assert "8999 more lines" in loaded.skipped[1000].reason


def test_what_a_library_raises_costs_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(text: str) -> None:
        raise ArithmeticError("of a library")

    monkeypatch.setattr(formats, "_first_heading", fails)
    [skipped] = formats.parsed(b"# Title\n\nText.", ".md", "a.md")
    assert isinstance(skipped, Skipped)
    assert "ArithmeticError: of a library" in skipped.reason


@pytest.mark.slow  # memory is counted object by object
def test_text_without_spaces_takes_no_more_memory_than_other_text() -> None:
    record = Record(text="x" * MIB, source="a.txt")
    tracemalloc.start()
    try:
        Splitter().split([record])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20 * MIB
