"""Every ``anchorfl ...`` line in a code block of a document is one that today's command line takes."""

from __future__ import annotations

import itertools
import re
import shlex
import sys
from pathlib import Path

import pytest

from anchorfl.pipeline.cli import commands, cooccurrence, data, fetch, probe
from anchorfl.pipeline.config.presets import build
from anchorfl.pipeline.run import assemble, prepare
from anchorfl.pipeline.storage import restore
from anchorfl.tasks.ingest import ingest
from anchorfl.tasks.synthetic import SYNTHETIC
from anchorfl.tasks.tabular import inspect
from anchorfl.tuning import commands as tuning_commands
from anchorfl.tuning.cli import main
from anchorfl.tuning.clusters import check, submit
from anchorfl.tuning.sweep import plan
from anchorfl.tuning.tables import recommend
from anchorfl.tuning.tables.command import TableCommand
from anchorfl.tuning.tables.listing import preset_toml
from tests.product.test_documents import documents, text_of

LINE = re.compile(r"^(?:    +|\t)?(?:\$ )?anchorfl ([^\n]*(?:(?<=\\)\n[^\n]*)*)", re.MULTILINE)
BLOCK = re.compile(r"^(`{3,})(\w*)\n(.*?)^\1|^((?: {4}[^\n]*\n)+)", re.DOTALL | re.MULTILINE)
PRESET = re.compile(r"^```toml\n(.*?)^```", re.DOTALL | re.MULTILINE)


class Parsed(Exception):
    """The command line was taken; what it asks for is not done here."""


def parsed(*_, **__):
    raise Parsed


def words_of(line):
    """Return the words of a command up to its comment, pipe or next command, without what the shell would fill in."""
    lexer = shlex.shlex(re.sub(r"\$\([^)]*\)", "", line.replace("\\\n", " ")), posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    return tuple(itertools.takewhile(lambda word: set(word) - {*"|&;<>"}, lexer))


def commands_of(document):
    """Return the ``anchorfl`` commands of a document's code blocks, each as words and once."""
    blocks = [found[3] or found[4] for found in BLOCK.finditer(text_of(document)) if found[2] != "python"]
    found = [words_of(line) for block in blocks for line in LINE.findall(block)]
    return [words for words in dict.fromkeys(found) if not any("$" in word for word in words)]


COMMANDS = [(document, words) for document in documents() for words in commands_of(document)]


@pytest.fixture
def nothing_runs(monkeypatch, tmp_path):
    """Commands end where they have read their arguments, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    for module, names in {
        commands: ("_train", "resume", "compare", "predict", "diagnose", "sync", "ui"), cooccurrence: ("cooccurrence",),
        tuning_commands: ("_run", "presets", "report"), plan: ("load_plan", "resumed_plan"), check: ("check",),
        submit: ("_connect",), probe: ("_check",),
        data: ("_describe",), fetch: ("_folder",),
        ingest: ("prepare",), prepare: ("resolve_options",), inspect: ("inspect_table",),
        TableCommand: ("run", "show"), recommend: ("shape_of_experiment",),
    }.items():  # fmt: skip
        for name in names:
            monkeypatch.setattr(module, name, parsed)
    for name in ("resolve_options", "count_clients"):
        monkeypatch.setattr(assemble, name, lambda experiment, *_: experiment)
    monkeypatch.setattr(assemble, "_on_table", lambda preset, start, _, apply, __: apply(build(preset, start.tree)))
    monkeypatch.setattr(restore, "restore_if_remote", lambda place, *_, **__: Path(place))
    for name in SYNTHETIC:
        monkeypatch.setitem(SYNTHETIC, name, parsed)


MINE = """
from dataclasses import dataclass
from anchorfl.pipeline.methods.fedprox import FedProx

@dataclass(frozen=True, kw_only=True)
class Mine(FedProx):
    name = "mine"
"""


def test_there_are_commands_to_check():
    assert len(COMMANDS) > 100
    assert {words[0] for _, words in COMMANDS} >= {"run", "resume", "sweep", "table", "data", "probe", "diagnose"}


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(("document", "words"), COMMANDS, ids=lambda v: v if isinstance(v, str) else " ".join(v))
def test_the_line_is_taken(document, words, capsys, monkeypatch):
    for word in words:
        if word.endswith(".toml") and not Path(word).exists():  # the preset of the page, or any
            blocks = [block for block in PRESET.findall(text_of(document)) if "[method]" in block]
            Path(word).write_text(blocks[0] if blocks else preset_toml("digits/fedavg"))
        if "mine:Mine" in word:
            Path("mine.py").write_text(MINE)
            monkeypatch.syspath_prepend(str(Path.cwd()))
            monkeypatch.setitem(sys.modules, "mine", None)  # what is imported is taken out at the end
            del sys.modules["mine"]
    try:
        code = main(words)
    except Parsed:
        return
    assert code == 0, capsys.readouterr().err


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("line", ["run digits/fedavg --federation.round 3", "table fedalign --row fedavg", "resum x"])
def test_a_line_with_a_slip_is_not(line, capsys):
    try:
        code = main(line.split())
    except SystemExit as end:
        code = end.code
    assert code == 2, capsys.readouterr()
