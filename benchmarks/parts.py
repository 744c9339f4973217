"""Cut a large file into parts that travel one by one, and put it together again.

    python benchmarks/parts.py split model.gguf build/weights/model.parts
    python benchmarks/parts.py join build/weights/model.parts build/weights/model.gguf

Beside the parts lies ``sha256sums.txt``, as `sha256sum` writes it: of every part, and of the whole.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

SUMS = "sha256sums.txt"


def split(file: Path, folder: Path, size: int) -> None:
    """Write the parts of a file, of at most `size` bytes."""
    folder.mkdir(parents=True)
    whole, lines = hashlib.sha256(), []
    with file.open("rb") as content:
        while block := content.read(size):
            part = f"{len(lines):03}"
            (folder / part).write_bytes(block)
            whole.update(block)
            lines.append(f"{hashlib.sha256(block).hexdigest()}  {part}\n")
    lines.append(f"{whole.hexdigest()}  {file.name}\n")
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def join(folder: Path, file: Path) -> None:
    """Put a file together from its parts.

    Raises:
        SystemExit: a part is missing or not what it was.
    """
    *parts, last = (folder / SUMS).read_text(encoding="utf-8").splitlines()
    whole = hashlib.sha256()
    unfinished = file.with_name(file.name + ".part")
    with unfinished.open("wb") as content:
        for line in parts:
            digest, name = line.split("  ")
            part = folder / name
            block = part.read_bytes() if part.exists() else b""
            if hashlib.sha256(block).hexdigest() != digest:
                raise SystemExit(f"{part} is missing or damaged. Copy it again.")
            whole.update(block)
            content.write(block)
    if whole.hexdigest() != last.split("  ")[0]:
        raise SystemExit(f"{folder / SUMS} is of other parts. Copy the folder again.")
    unfinished.replace(file)


def main() -> None:
    """Split or join."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    splitting = commands.add_parser("split")
    splitting.add_argument("file", type=Path)
    splitting.add_argument("folder", type=Path)
    splitting.add_argument("--size", type=int, default=40, help="MiB of a part")
    joining = commands.add_parser("join")
    joining.add_argument("folder", type=Path)
    joining.add_argument("file", type=Path)
    args = parser.parse_args()
    if args.command == "split":
        if args.size < 1 or args.folder.exists():
            raise SystemExit("A part has 1 MiB or more, and their folder must not be there yet.")
        split(args.file, args.folder, args.size * 2**20)
    else:
        join(args.folder, args.file)


if __name__ == "__main__":
    main()
