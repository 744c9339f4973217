"""Small PDF files for tests, written by hand: pypdf reads text and writes none."""


def pdf(*pages: str, title: str | None = None, font: str = "/Type1 /BaseFont /Helvetica") -> bytes:
    """A PDF with one line of ASCII text, or of codes of a font, on each page."""
    count = len(pages)
    kids = " ".join(f"{4 + 2 * at} 0 R" for at in range(count))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {count} >>",
        f"<< /Type /Font /Subtype {font} >>",
    ]
    for at, text in enumerate(pages):
        stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET"
        objects += [
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] "
            f"/Resources << /Font << /F1 3 0 R >> >> /Contents {5 + 2 * at} 0 R >>",
            f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream",
        ]
    objects.append(f"<< /Title ({title}) >>" if title else "<< >>")
    content, offsets = "%PDF-1.4\n", []
    for number, each in enumerate(objects, start=1):
        offsets.append(len(content))
        content += f"{number} 0 obj\n{each}\nendobj\n"
    table = "".join(f"{offset:010d} 00000 n \n" for offset in offsets)
    size = len(objects) + 1
    trailer = f"<< /Size {size} /Root 1 0 R /Info {len(objects)} 0 R >>"
    return (
        f"{content}xref\n0 {size}\n0000000000 65535 f \n{table}"
        f"trailer\n{trailer}\nstartxref\n{len(content)}\n%%EOF\n"
    ).encode("ascii")
