"""Keep the records of finished runs in one small archive, which a table reads like the run folders themselves.

Kept of a run: run.json and config.json, its result, and its rounds without scores per class, without what
the machine did meanwhile and without names of users and folders. Seconds are rounded, scores are not. Runs that the
archive holds already stay in it.

    python -m benchmarks.keep_records runs --out benchmarks/results/bibtex-lambda.tar.xz
    mkdir kept && tar -xf benchmarks/results/bibtex-lambda.tar.xz -C kept
    anchorfl table fedalc --data bibtex --task.validation 0 --runs kept --show
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
import tarfile
from pathlib import Path
from typing import Any

from anchorfl.pipeline.storage import places
from anchorfl.pipeline.storage.run_folder import CONFIG, RESULT, read_result
from anchorfl.pipeline.storage.run_record import line_of, read_metadata, with_final_scores
from anchorfl.tasks.errors import InputError

RECORDS = ("run.json", CONFIG, RESULT, "metrics.jsonl")
DROPPED = ("system/", "time/process")
"""Metrics that say something of the machine alone."""

PLACES = ("output", "task.root", "task.cache", "cluster.backup", "tracking.uri")
"""Options that name places on the machine; no result depends on them. Of any other place that is a path from the root
its last name is kept.
"""


def slim(folder: Path) -> dict[str, bytes]:
    """Return the four files of a run, by name."""
    about = {key: value for key, value in read_metadata(folder).items() if key != "user"}
    about |= {"folder": folder.name, "artifacts": [], "parent": None}
    about["params"] = {key: _nameless(key, value) for key, value in about["params"].items()}
    lines = [json.dumps(_round(json.loads(line_of(record)))) for record in with_final_scores(folder)]
    config = json.loads((folder / CONFIG).read_text())
    for option in {*PLACES, *places.PLACES}:
        section, _, name = option.rpartition(".")
        table = config[section] if section else config
        if name in table or option in PLACES:
            table[name] = _nameless(option, table.get(name, ""))
    texts = [json.dumps(about), json.dumps(config), (folder / RESULT).read_text(), "\n".join(lines) + "\n"]
    return {name: text.encode() for name, text in zip(RECORDS, texts, strict=True)}


def _nameless(option: str, value: Any) -> Any:
    if option in PLACES:
        return ""
    return Path(value).name if option in places.PLACES and str(value).startswith("/") else value


def _round(line: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in line["metrics"].items() if not name.startswith(DROPPED)}
    metrics = {name: round(value, 3) if name.startswith("time/") else value for name, value in kept.items()}
    return {"round": line["round"], "time": round(line["time"], 2), "metrics": metrics}


def write(archive: Path, runs: dict[str, dict[str, bytes]]) -> None:
    """Write the archive anew; the same runs, which have the same files, give the same bytes."""
    draft = archive.with_name(archive.name + ".tmp")
    with tarfile.open(draft, "w:xz", preset=9 | lzma.PRESET_EXTREME) as tar:
        # file by file over all runs: like stands beside like, which packs better
        for file in dict.fromkeys(file for files in runs.values() for file in files):
            for name, files in sorted((name, files) for name, files in runs.items() if file in files):
                entry = tarfile.TarInfo(f"{name}/{file}")
                entry.size = len(files[file])
                tar.addfile(entry, io.BytesIO(files[file]))
    draft.replace(archive)


def read(archive: Path) -> dict[str, dict[str, bytes]]:
    """Return the files of an archive, by run; {} where there is none."""
    runs: dict[str, dict[str, bytes]] = {}
    if archive.exists():
        with tarfile.open(archive) as tar:
            for entry in tar:
                name, _, file = entry.name.rpartition("/")
                content = tar.extractfile(entry)
                assert content is not None
                runs.setdefault(name, {})[file] = content.read()
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="folders below which the runs lie")
    parser.add_argument("--out", type=Path, required=True, help="the archive, .tar.xz")
    options = parser.parse_args()
    runs = read(options.out)
    before, folders = len(runs), dict[str, Path]()
    for path in sorted(path for top in options.runs for path in top.rglob("run.json")):
        try:
            if read_result(path.parent):
                other = folders.setdefault(path.parent.name, path.parent)
                if other != path.parent:
                    parser.exit(
                        2, f"{other} and {path.parent}: runs are kept by the names of their folders: rename one\n"
                    )
                runs[path.parent.name] = slim(path.parent)
        except InputError as error:
            parser.exit(2, f"{error}\n")
    if not runs:
        parser.exit(2, f"no finished run below {', '.join(map(str, options.runs))}; {options.out} is not written\n")
    write(options.out, runs)
    print(
        f"{options.out}: {len(runs)} runs, {len(runs) - before} of them new, {options.out.stat().st_size / 1e3:.0f} kB"
    )


if __name__ == "__main__":
    main()
