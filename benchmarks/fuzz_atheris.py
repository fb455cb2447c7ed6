"""Coverage-guided fuzzing of byte-level parsers by atheris, outside CI: what hypothesis does not know to write, the
coverage of the parser's own lines leads to.

    pip install atheris
    python benchmarks/fuzz_atheris.py arff FOLDER -max_total_time=600

PARSER is one of those below; FOLDER keeps the inputs that reached something new, and starts with the valid ones; what
follows goes to libFuzzer. Ends at the first input that breaks the promise of docs/hostile-input.md.
"""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import atheris

with atheris.instrument_imports(
    include=[
        "anchorfl.tasks.sparse",
        "anchorfl.tasks.signals",
        "anchorfl.tasks.text",
        "anchorfl.tasks.files.json_schema",
        "anchorfl.pipeline",
    ]
):
    from anchorfl.pipeline.config.presets import read_preset
    from anchorfl.pipeline.storage.checkpoint import index_of, seal
    from anchorfl.tasks.errors import InputError
    from anchorfl.tasks.files.bad_rows import BadRows
    from anchorfl.tasks.signals.recordings import recording
    from anchorfl.tasks.sparse.arff import read_arff
    from anchorfl.tasks.sparse.xc_format import read_rows
    from anchorfl.tasks.text.csv_records import read_blocks

PLACE = Path(tempfile.mkdtemp())
ARFF = (
    b"@relation a\n@attribute 'x y' numeric\n@attribute b {0,1}\n@attribute c {red,blue}\n@data\n1.5,0,red\n{0 2,1 1}\n"
)
SEEDS = {
    "arff": ARFF,
    "xc": b"3 5 4\n0,2 0:1.5 3:2\n 1:1\n3 4:1e-3\n",
    "recording": b"1 2.5 nan\n2 3 4\n",
    "csv": b'a,b\n1,"two\nlines"\n2,x\n',
    "preset": b'extends = "digits/fedalign"\nseed = 3\n[method]\nq1 = 90.5\n[optimizer]\nlr = 0.1\n',
    "checkpoint": b'{"format": 3, "round": 2, "parts": {"s": {"file": "a.safetensors", "sha256": ""}}, "notes": {}}',
}


def written(name: str, data: bytes) -> Path:
    path = PLACE / name
    path.write_bytes(data)
    return path


def checkpoint(data: bytes) -> object:
    """Read a changed index with its checksum set right, or nothing behind its check would be reached."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        content = None
    if isinstance(content, dict):
        content.pop("sha256", None)
        with suppress(RecursionError):
            data = json.dumps(content | {"sha256": seal(content)}).encode()
    return index_of(data, "checkpoint.json")


READERS = {
    "arff": lambda data: read_arff(written("a.arff", data), BadRows(skip=bool(len(data) % 2))),
    "xc": lambda data: read_rows(written("a.txt", data), BadRows(skip=bool(len(data) % 2))),
    "recording": lambda data: recording(PLACE / "a.dat", data, ("t", "x", "y"), " ", False),
    "csv": lambda data: list(read_blocks(written("a.csv", data), ("a", "b"), BadRows(skip=bool(len(data) % 2)))),
    "preset": lambda data: read_preset(str(written("a.toml", data))),
    "checkpoint": checkpoint,
}


def main() -> None:
    name, folder, *options = sys.argv[1:]
    read, start = READERS[name], Path(folder)
    start.mkdir(parents=True, exist_ok=True)
    (start / "valid").write_bytes(SEEDS[name])

    def once(data: bytes) -> None:
        try:
            read(data)
        except InputError as error:
            if not str(error).isprintable():
                raise RuntimeError("more than one line of plain text") from error

    atheris.RunSpec([sys.argv[0], folder, "-rss_limit_mb=4096", "-timeout=20", *options], once)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
