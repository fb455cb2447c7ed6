"""The page of runs: what the records say stands in it, names are text, nothing is loaded, and a served one follows."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import shutil
import threading
from html.parser import HTMLParser
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from anchorfl.pipeline.config.experiment import digest
from anchorfl.pipeline.config.idle_options import check_idle
from anchorfl.pipeline.config.overrides import override, typed_options
from anchorfl.pipeline.config.presets import read_preset
from anchorfl.pipeline.config.repetition import repetition_of
from anchorfl.pipeline.results import page_parts
from anchorfl.pipeline.results.compare import compare
from anchorfl.pipeline.results.page_server import PageServer
from anchorfl.pipeline.results.run_page import PAGE, _mark, _numbers, _value, run_page
from anchorfl.pipeline.results.run_view import Run, last_class_scores
from anchorfl.pipeline.run.assemble import from_words
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.storage.run_folder import lock_run, read_result
from anchorfl.pipeline.storage.run_record import RoundRecord, line_of, read_records
from anchorfl.testing import small_experiment, stopped_before
from anchorfl.tuning.cli import main
from tests.runs import quiet

VOID = {"meta", "br", "img"}


class Outline(HTMLParser):
    """A page as it is nested: fails where a tag does not close, keeps what the tests ask of it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.titled: list[bool] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        if self.open and self.open[-1] == "svg":
            self.titled.append(tag == "title")
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)

    def having(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


def checked(page: str) -> Outline:
    """Return a page that is whole, stands alone, and says its tables and pictures to those who do not see them."""
    outline = Outline(page)
    names = {name for name, _ in outline.tags}
    assert names.isdisjoint({"script", "link", "iframe", "object", "img", "base", "form"})
    for _, attrs in outline.tags:
        assert not {"src", "href", "srcset", "action"} & attrs.keys()
        assert not [name for name in attrs if name.startswith("on")]
    assert "http:" not in page and "https:" not in page and "url(" not in page and "@import" not in page  # noqa: PT018
    assert outline.having("svg")
    assert all(attrs["aria-label"] and attrs["role"] == "img" for attrs in outline.having("svg"))
    assert len(outline.having("table")) == len(outline.having("caption")) > 2
    assert all(attrs["scope"] in ("row", "col") for attrs in outline.having("th"))
    assert outline.having("html") == [{"lang": "en"}]
    return outline


def test_a_finished_run(finished_run, experiment):
    e = experiment("fedalign")
    done = finished_run(e)
    page = run_page([done.folder])
    outline = checked(page)
    said = " ".join(outline.text)
    for values in done.scores.values():
        assert all(f"{100 * values[name]:.2f}" in said for name in ("f1_macro", "accuracy"))
    assert done.checksum in said
    assert digest(e) in said
    assert "finished, 3 of 3 rounds" in said
    assert "No client was dropped" in said
    view = Run(done.folder)
    classes = view.per_class()
    rows = re.findall(r'<tr><th scope="row">([^<]+)</th><td class="n">([0-9]+)</td><td class="b"', page)
    assert rows == [(name, str(n)) for name, n in classes["clients"].items()]
    counts = view.confusion_counts()
    cells = [int(n or 0) for n in re.findall(r'<td class="q"[^>]*>([0-9]*)</td>', page)]
    assert cells == counts.ravel().tolist()
    held = view.partition()
    titles = re.findall(r"<title>client ([0-9]+), ([^:]+): ([0-9]+) rows, (identified|not identified)</title>", page)
    assert titles == [
        (str(r["client"]), r["class"], str(r["rows"]), "identified" if r["identified"] else "not identified")
        for _, r in held.iterrows()
    ]
    moved = sum(r.metrics["communication/upload_bytes"] for r in read_records(done.folder)[0])
    assert f"{moved / 1e6:.2f}" in said
    assert page == run_page([done.folder])


def test_its_command_repeats_it(finished_run, experiment):
    e = experiment("fedalign", seed=4)
    e = dataclasses.replace(e, task=dataclasses.replace(e.task, split_seed=None), output="runs/x")
    words = shlex.split(repetition_of(e).command)
    assert words[:3] == ["anchorfl", "run", "suite-digits-masks-2/fedalign"], "the nearest of all presets"
    assert {"--output", "--tracking.uri", "--optimizer.lr"}.isdisjoint(words), "a rate that FedAlign does not read"
    again = from_words(words[2], words[3:], "anchorfl run", quiet).experiment
    check_idle(typed_options(words[3:]), [again])
    rate = dataclasses.replace(e.optimizer, lr=again.optimizer.lr)
    assert digest(again) == digest(dataclasses.replace(e, optimizer=rate))
    folder = finished_run(experiment("fedalign")).folder
    command = repetition_of(Run(folder).experiment).command
    assert command in " ".join(checked(run_page([folder])).text)


@pytest.mark.parametrize(
    "partition",
    [
        "--task.input_columns size",
        "--task.input_columns size --task.client_column site",
        "--task.input_columns size --task.partition dirichlet --task.clients 3 --task.beta 0.4",
        "--task.input_columns size --task.partition one_class",
    ],
)
def test_its_command_on_a_table_repeats_it(partition, tmp_path):
    rows = "".join(f"{i}.5,{'ab'[i % 2]},{'xyz'[i % 3]}\n" for i in range(60))
    (tmp_path / "my table.csv").write_text("size,my kind,site\n" + rows)
    words = ["--task.file", str(tmp_path / "my table.csv"), "--task.label_columns", "my kind", "--method.name", "fedpu"]
    words += partition.split()
    e = from_words("", words, "anchorfl run", quiet).experiment
    again = shlex.split(repetition_of(e).command)
    assert digest(from_words("", again[2:], "anchorfl run", quiet).experiment) == digest(e)
    check_idle(typed_options(again[2:]), [e])


def test_a_value_that_begins_with_a_minus_is_given_as_one_word(experiment):
    e = experiment()
    e = dataclasses.replace(e, model=dataclasses.replace(e.model, weights="-w"))
    again = shlex.split(repetition_of(e).command)
    assert "--model.weights=-w" in again
    assert override(read_preset(again[2]), again[3:]).model.weights == "-w"


def test_names_are_text(finished_run, experiment, tmp_path):
    """Names out of files that others wrote open no tag and end no attribute."""
    hostile = '"><script>alert(1)</script><img src=x onerror=1>\u00e9'
    folder = tmp_path / "run'\"<b>"
    shutil.copytree(finished_run(experiment()).folder, folder)
    known = next(iter(read_records(folder)[0][-1].per_class.values()))
    lines = (folder / "metrics.jsonl").read_text().replace(f'"{next(iter(known))}"', json.dumps(hostile))
    (folder / "metrics.jsonl").write_text(lines)
    metadata = json.loads((folder / "run.json").read_text())
    metadata["name"], metadata["tags"]["notice"] = hostile, hostile
    (folder / "run.json").write_text(json.dumps(metadata))
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(result | {"round": hostile, "stopped": hostile}))
    outline = checked(run_page([folder]))
    assert " ".join(outline.text).count(hostile) >= 5
    assert "run'\"<b>" in " ".join(outline.text)


def test_seeds_have_a_band_and_methods_a_letter(finished_run, experiment):
    folders = [finished_run(experiment(seed=seed)).folder for seed in (1, 2)]
    page = run_page(folders)
    outline = checked(page)
    assert 'class="band c0"' in page
    said = " ".join(outline.text)
    assert "band: lowest to highest run" in said
    scores = [Run(folder).scores["test"]["f1_macro"] for folder in folders]
    assert f"{50 * sum(scores):.2f} ± " in said
    both = run_page([*folders, finished_run(experiment("fedalign")).folder])
    assert len(checked(both).having("details")) == 3
    assert "a: toy-single fedavg, test, mean of 2 runs" in both
    assert "b: toy-single fedalign, test" in both
    assert '<th scope="col" class="w">b: test F1</th>' in both


def test_runs_that_are_not_finished(experiment, tmp_path):
    folder = tmp_path / "run"
    with stopped_before(2):
        run(experiment(), folder, quiet)
    assert "interrupted after round 1 of 3" in run_page([folder])
    with lock_run(folder):
        page = run_page([folder], refresh_s=7)
    assert "running, round 1 of 3 is done" in page
    assert '<meta http-equiv="refresh" content="7">' in page
    whole = shutil.copytree(folder, tmp_path / "whole")
    (folder / "metrics.jsonl").write_text("")
    assert "No round has a score yet." in run_page([folder])
    assert "run stops at round 0, others of its group at 1" in run_page([folder, whole])


def test_without_its_data(finished_run, experiment, tmp_path):
    shutil.copytree(finished_run(experiment()).folder, tmp_path / "run")
    metadata = json.loads((tmp_path / "run" / "run.json").read_text())
    metadata["tags"]["data_digest"] = "0" * 64
    (tmp_path / "run" / "run.json").write_text(json.dumps(metadata))
    page = run_page([tmp_path / "run"])
    assert "nothing is shown of the partition" in page
    assert "not identified" not in page


@pytest.mark.usefixtures("pictures")
def test_a_run_writes_it_and_the_command_writes_it_again(experiment, tmp_path, capsys):
    folder = tmp_path / "run"
    done = run(experiment(), folder, quiet, quiet=True)
    path = folder / "report" / PAGE
    said = " ".join(checked(path.read_text()).text)
    assert "finished, 3 of 3 rounds" in said
    assert done.checksum in said
    assert "anchorfl report</code> adds it" in path.read_text()
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out == f"{path}\n"
    assert "by true class" in path.read_text()
    assert main(["report", str(folder), "--out", str(tmp_path / "new" / "page.html")]) == 0
    assert (tmp_path / "new" / "page.html").read_text() == path.read_text()


@pytest.mark.parametrize("port", ["-1", "65536"])
def test_bad_ports_and_folders_are_one_line(finished_run, experiment, tmp_path, capsys, port):
    folder = str(finished_run(experiment()).folder)
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "sweep.json").write_text("{}")
    for words, message in (
        ([str(tmp_path)], "holds no run"),
        ([folder, "--serve", port], f"--serve {port}: must be from 0"),
        ([str(tmp_path / "sweep"), folder], "is a sweep: name it alone"),
    ):
        assert main(["report", *words]) == 2
        said = capsys.readouterr().err
        assert message in said
        assert said.count("\n") == 1


def test_the_served_page_follows_the_run(experiment, tmp_path):
    folder = tmp_path / "run"
    with stopped_before(2):
        run(experiment(), folder, quiet)
    with PageServer([Run(folder)], 0) as server:
        assert server.server_address[0] == "127.0.0.1"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with urlopen(server.address, timeout=20) as answer:
                before = answer.read().decode()
            record = read_records(folder)[0][-1]
            later = dataclasses.replace(record, round=2, metrics=record.metrics | {"test/f1_macro": 0.98765})
            with (folder / "metrics.jsonl").open("a") as stream:
                stream.write(line_of(later))
            with urlopen(server.address, timeout=20) as answer:
                after = answer.read().decode()
            for asked in (f"{server.address}etc", Request(server.address, headers={"Host": "evil.example"})):
                with pytest.raises(HTTPError):
                    urlopen(asked, timeout=20)
        finally:
            server.shutdown()
    assert '<meta http-equiv="refresh"' in before
    assert "98.77" not in before
    assert "98.77" in after
    assert "after round 2 of 3" in after


def test_ctrl_c_ends_the_served_page(finished_run, experiment, monkeypatch, capsys):
    def stop(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(PageServer, "serve_forever", stop)
    assert main(["report", str(finished_run(experiment()).folder), "--serve", "0"]) == 130
    assert re.fullmatch(r"http://127\.0\.0\.1:[0-9]+/ \(stop it with Ctrl-C\)\n", capsys.readouterr().out)


def _luminance(color):
    parts = [c / 255 for c in color]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one, other):
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("setting", [0, 1], ids=["light", "dark"])
def test_contrast(setting):
    """Text 4.5:1, also over the strongest bar or cell of a heat map; curves 4.5:1 (WCAG 2.2 AA asks 3:1)."""
    block = re.findall(r":root \{(.*?)\}", page_parts.STYLE, re.DOTALL)[setting]
    colors = {n: [int(v[i : i + 2], 16) for i in (0, 2, 4)] for n, v in re.findall(r"--(\w+): #(\w{6})", block)}
    colors |= {n: list(map(int, v.split())) for n, v in re.findall(r"--(\w+): (\d+ \d+ \d+)", block)}
    for text in ("fg", "muted", *(f"c{number}" for number in range(page_parts.COLORS))):
        assert min(_contrast(colors[text], colors[below]) for below in ("bg", "panel")) >= 4.5, text
    for shade in ("heat", "held"):
        over = [
            page_parts.HEAT * c + (1 - page_parts.HEAT) * b for c, b in zip(colors[shade], colors["bg"], strict=True)
        ]
        assert _contrast(colors["fg"], over) >= 4.5, shade


def test_an_option_with_an_address_is_shown_without_its_password():
    assert _value("postgresql+psycopg://me:hush@127.0.0.1/runs") == "postgresql+psycopg://***@127.0.0.1/runs"


def test_letters_of_groups_and_numbers_of_rounds_go_on():
    assert [_mark(n) for n in (0, 25, 26, 27, 51, 52, 702)] == ["a", "z", "aa", "ab", "az", "ba", "aaa"]
    assert _numbers([]) == "-"
    assert _numbers([3, 7]) == "3, 7"
    assert _numbers(range(1, 60)).endswith("29, 30 and 29 more")


def test_scores_by_class_are_of_the_selected_round():
    first, last = (
        RoundRecord(n, 0.0, {}, {"validation/f1": {"a": n / 10}} | ({"test/f1": {"a": 0.5}} if n == 1 else {}))
        for n in (1, 3)
    )
    assert last_class_scores([first, last], 1) == {"validation/f1": {"a": 0.1}, "test/f1": {"a": 0.5}}
    assert last_class_scores([first, last], None) == {"validation/f1": {"a": 0.3}, "test/f1": {"a": 0.5}}
    assert last_class_scores([first, last], 2)["validation/f1"] == {"a": 0.3}


def test_a_page_says_what_its_numbers_are_of(tmp_path):
    """A test split that a run leaves unscored, labels that were hidden, and what ``compare`` says of groups."""
    e = small_experiment("fedavg", evaluation={"test": "never"}, task={"hidden_labels": 0.5})
    for name in ("one", "two"):
        run(e, tmp_path / name, quiet)
    alone = run_page([tmp_path / "one"])
    assert "The test split of this run is not scored" in alone
    assert "Test rows by true class" not in alone
    assert "without the labels that task.hidden_labels took away" in alone
    assert "more than once; its sd is too small" in run_page([tmp_path / "one", tmp_path / "two"])


@pytest.mark.usefixtures("pictures")
def test_what_a_run_writes_of_its_selected_round_and_its_clients_is_what_the_commands_say_later(tmp_path):
    """result.json comes last, so the run's own pages are drawn before it is there."""
    e = small_experiment(
        data="toy-multi",
        task={"client_test": "0.3"},
        evaluation={"model_selection": "best_validation"},
        federation={"rounds": 8, "epochs": 1},
        optimizer={"lr": 0.02},
    )
    folder = tmp_path / "run"
    run(e, folder, quiet)
    assert read_result(folder)["round"] < 8
    page = (folder / "report" / PAGE).read_text()
    later = run_page([folder])
    assert page[page.index("<h2>Classes") : page.index("<h2>Partition")] in later
    assert (folder / "report" / "comparison.md").read_text() == compare([folder], tmp_path / "new").markdown
