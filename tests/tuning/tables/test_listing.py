"""``anchorfl presets``: what there is, published beside ours, one as a file, two compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from anchorfl.pipeline.config.presets import preset_names, read_preset
from anchorfl.tuning.cli import main
from anchorfl.tuning.tables.listing import _ranges


def shown(capsys, *arguments):
    assert main(["presets", *arguments]) == 0
    return capsys.readouterr().out


def test_without_a_pattern_all_federations_and_rows(capsys):
    text = shown(capsys)
    words = set(text.replace(",", " ").replace(":", " ").split())
    for name in preset_names():
        assert set(name.split("/")) <= words, name
    assert "682 presets, each a federation and a row" in text
    assert max(map(len, text.splitlines())) <= 120


def test_published_beside_ours(capsys):
    lines = shown(capsys, "r8-8-redrawn/*").splitlines()
    assert lines[0].split("  ")[0] == "preset"
    assert len(lines) == 1 + 12 * 2
    found = [line for line in lines if line.startswith("r8-8-redrawn/fedalign ")]
    assert [" ".join(line.split()) for line in found] == [
        "r8-8-redrawn/fedalign macro F1 83.76 87.77 ± 4.06 4321-4325 0.45 CPU hours",
        "r8-8-redrawn/fedalign accuracy 94.92 95.41 ± 1.76 4321-4325 0.45 CPU hours",
    ]


def test_the_page_shows_what_is_printed(capsys):
    page = (Path(__file__).parents[3] / "docs" / "presets.md").read_text(encoding="utf-8")
    assert f"```\n$ anchorfl presets r8-8/fedalign\n{shown(capsys, 'r8-8/fedalign')}```\n" in page


def test_what_is_not_there_is_a_dash_and_other_settings_are_noted(capsys):
    text = shown(capsys, "ham10000-0.05")
    words = {" ".join(line.split()) for line in text.splitlines()}
    assert "ham10000-0.05/feddyn macro F1 20.33 ± 0.70 - - -" in words
    assert "ham10000-0.05/fedbm-no-cgde - - - - -" in words
    assert "ham10000-0.05/fedavg macro F1 31.84 ± 1.90 13.74 ± 1.91 [1] 0-2 0.029 CPU hours" in words
    assert "\n[1] with --task.name ham10000 --task.variant hmnist_8_8_L --task.image_size 8 " in text
    assert "digits/fedavg - - - - about 25 CPU seconds" in " ".join(shown(capsys, "digits").split())


def test_one_as_a_file(capsys, tmp_path):
    """A shipped one as its files have it; one's own with every option, and no password."""
    path = tmp_path / "own.toml"
    path.write_text(shown(capsys, "--toml", "r8-8/moon"))
    assert read_preset(str(path)) == read_preset("r8-8/moon")
    assert "microbatch_tokens" not in path.read_text()
    path.write_text("extends = 'r8-8/moon'\n[tracking]\nuri = 'postgresql://alice:hunter2@db.example.org/m'\n")
    text = shown(capsys, "--toml", str(path))
    assert "microbatch_tokens" in text
    assert "hunter2" not in text


def test_two_compared(capsys):
    lines = [line.split() for line in shown(capsys, "--diff", "r8-8/fedavg", "r8-8/moon").splitlines()]
    assert lines == [
        ["option", "r8-8/fedavg", "r8-8/moon"],
        ["method.name", "fedavg", "moon"],
        ["method.mu", "-", "0.001"],
        ["method.tau", "-", "0.5"],
    ]
    assert shown(capsys, "--diff", "oct-c8-0.1/fedbm", "oct-c8-0.1/fedbm-div-1").endswith("have the same options\n")


def test_options_that_change_no_result_are_told_apart(capsys, tmp_path):
    path = tmp_path / "own.toml"
    path.write_text("extends = 'r8-8/moon'\noutput = 'x'\n")
    assert shown(capsys, "--diff", "r8-8/moon", str(path)).endswith("no result depends on these\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["r88"], "no preset fits 'r88' (did you mean 'r8-8'?): give a part of a name, or a glob such as 'r8-8/*'"),
        (["r8-8/fedalgin"], "no preset fits 'r8-8/fedalgin' (did you mean 'r8-8/fedalign'?)"),
        (["--toml", "r8-8/fedalgin"], "no preset 'r8-8/fedalgin' (did you mean 'r8-8/fedalign'?)"),
        (["--diff", "r8-8/moon", "x.toml"], "no preset 'x.toml'; there are: "),
        (["--json", "--toml", "r8-8/moon"], "--json is for the list of presets: leave out --toml and --diff"),
        (["r8-8", "--toml", "r8-8/moon"], "presets takes one of PATTERN, --toml NAME and --diff A B"),
    ],
)
def test_what_is_refused(capsys, arguments, message):
    assert main(["presets", *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_seeds_as_ranges():
    assert _ranges([3, 0, 1, 2, 5]) == "0-3, 5"
    assert _ranges([7]) == "7"


def test_as_objects(capsys):
    """The numbers of the list, with seeds one by one; all presets where no pattern is given."""
    assert main(["presets", "r8-8/fedalign", "--json"]) == 0
    found = {(entry["preset"], entry["metric"]): entry for entry in json.loads(capsys.readouterr().out)}
    assert main(["presets", "r8-8/fedalign"]) == 0
    text = capsys.readouterr().out
    one = found["r8-8/fedalign", "macro F1"]
    assert one["published"] == {"mean": 83.76, "sd": None}
    assert one["ours"]["seeds"] == [4321, 4322, 4323, 4324, 4325]
    assert f"{one['ours']['mean']:.2f} ± {one['ours']['sd']:.2f}" in text
    assert len(found) == len(text.splitlines()) - 1
    assert main(["presets", "--json"]) == 0
    every = json.loads(capsys.readouterr().out)
    assert {entry["preset"].split("/")[0] for entry in every} > {"r8-8", "pbc-0.05"}
    assert all(entry["ours"] is None for entry in every if entry["preset"].startswith("mimic3-10/"))
