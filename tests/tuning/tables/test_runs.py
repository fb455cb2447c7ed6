"""The runs that a table asks for, those that are there, and what is missing: without a run."""

from __future__ import annotations

import contextlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from anchorfl.pipeline.config.experiment import SAME_TO_ROUNDING, digest
from anchorfl.pipeline.config.overrides import override
from anchorfl.pipeline.config.presets import read_preset
from anchorfl.pipeline.storage.atomic_files import write_json
from anchorfl.pipeline.storage.run_folder import lock_run, write_config
from anchorfl.tasks.errors import InputError
from anchorfl.tuning.cli import main
from anchorfl.tuning.tables import papers
from anchorfl.tuning.tables.command import TableCommand, parse_args
from anchorfl.tuning.tables.options import drop_free_options
from anchorfl.tuning.tables.papers import paper_of
from anchorfl.tuning.tables.published import rows_of
from anchorfl.tuning.tables.runs import (
    attach_folders,
    check_has_scores,
    failure_lines,
    index_runs,
    jobs_of,
    missing_data,
    notes_on_earlier_epochs,
    notes_on_other_data,
    notes_without_states,
    prepare_all,
    table_runs_of,
)
from tests.tuning.made_tables import made_run, toy

SCORES = {"test/f1_macro": [0.1, 0.2], "test/accuracy": [0.1, 0.3]}
R8 = "paper,table,dataset,setting,method,metric,mean_percent,std_percent\nToy,1,R8-8,,FedAvg,macro_f1,78.51,\n"


def test_cells_are_experiments(paper):
    """The preset with the seed and the overrides, serial unless the overrides say otherwise, seed by seed."""
    table_runs = table_runs_of(rows_of(paper), [5, 6], ["--federation.rounds", "2"])
    assert [(c.row.name, c.seed) for c in table_runs] == [
        ("fedavg", 5),
        ("fedalign", 5),
        ("fedavg", 6),
        ("fedalign", 6),
    ]
    e = override(replace(read_preset("digits/fedavg"), seed=5), ["--federation.rounds", "2"])
    assert table_runs[0].digest == digest(e) == digest(table_runs[0].experiment)
    assert table_runs[0].experiment.cluster.executor == "serial"
    assert not table_runs[0].has_preset_options
    own = table_runs_of(rows_of(paper), [5], ["--cluster.executor", "ray", "--evaluation.save_state_every", "1"])[0]
    assert own.experiment.cluster.executor == "ray"
    with pytest.raises(InputError, match=r"federation.deadline needs processes .* with --cluster.executor"):
        table_runs_of(rows_of(paper), [5], ["--federation.deadline", "60"])
    assert own.has_preset_options
    assert own.digest == digest(replace(read_preset("digits/fedavg"), seed=5))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["--seed", "3"], r"--seed: a table sets it for its runs; give --seeds 4321,4322"),
        (["--federation.rounds", "0"], r"digits/fedavg: .*federation\.rounds = 0"),
        (["--output=x"], r"--output: a table sets it for its runs; give --runs FOLDER and --out FOLDER"),
        (["--evaluation.test", "never"], r"a table shows scores of the test split"),
        (["--method.q7", "90"], r"digits/fedavg: .*no option --method.q7.*\(--rows leaves rows out\)"),
    ],
)
def test_refused_overrides(paper, overrides, message):
    with pytest.raises(InputError, match=message):
        check_has_scores(paper, table_runs_of(rows_of(paper), [1], overrides))


@pytest.mark.parametrize(
    ("paper", "overrides", "message"),
    [
        ("fedalign", "--evaluation.metrics ranking", "shows macro F1, accuracy, which such runs have not"),
        ("fedbm", "--evaluation.model_selection last --evaluation.test last", r"is reported otherwise \(best_sum\)"),
        (
            "fedalign",
            "--evaluation.model_selection best_validation --evaluation.test last",
            r"is reported otherwise \(last\)",
        ),
        ("fedbm", "--evaluation.test last", ""),
        ("fedalign", "--evaluation.test last", ""),
    ],
)
def test_runs_without_the_score_of_a_table_are_refused(paper, overrides, message):
    paper = paper_of(paper)
    table_runs = table_runs_of(
        [row for row in rows_of(paper) if row.name in ("fedavg", "fedprox")][:1], [1], overrides.split()
    )
    with pytest.raises(InputError, match=message) if message else contextlib.nullcontext():
        check_has_scores(paper, table_runs)


def test_an_option_of_one_method_goes_to_its_rows(paper):
    """With its values, and what every row has still goes to every row."""
    table_runs = table_runs_of(rows_of(paper), [5], ["--method.q1", "90", "--federation.rounds=2", "--method.q2=40"])
    assert [(c.row.name, c.experiment.federation.rounds) for c in table_runs] == [("fedavg", 2), ("fedalign", 2)]
    assert (table_runs[1].experiment.method.q1, table_runs[1].experiment.method.q2) == (90, 40)
    plain = table_runs_of(rows_of(paper), [5], ["--federation.rounds", "2"])
    assert [c.digest == p.digest for c, p in zip(table_runs, plain, strict=True)] == [True, False]


def test_an_option_of_several_methods_is_for_named_rows():
    """alpha is FedAlign's weight of pseudo-labels and FedRS's scale of other classes."""
    rows = [r for r in rows_of(paper_of("fedalign")) if r.folder == "r8-8"]
    with pytest.raises(InputError, match=r"--method.alpha: .*fedrs.*say with --rows which rows it is for"):
        table_runs_of(rows, [1], ["--method.alpha", "0.5"])
    own = [r for r in rows if r.name in ("fedavg", "fedalign", "fedalign-no-se")]
    assert [c.experiment.method.alpha for c in table_runs_of(own, [1], ["--method.alpha", "0.5"])[1:]] == [0.5, 0.5]


def test_the_page_says_whose_option_it_was(paper):
    assert TableCommand(parse_args(["toy", "--method.q1", "90"])).notes == [
        "--method.q1 goes to the rows of fedalign alone: others have no such option"
    ]


def test_options_that_change_a_result():
    words = (
        "--cluster.executor ray --federation.rounds 2 --tracking.uri=none --evaluation.save_state_every 5 --task.cache"
        " x"
    )
    assert drop_free_options([*words.split(), "--evaluation.every", "2"]) == [
        *words.split()[2:4],
        "--evaluation.every",
        "2",
    ]
    assert drop_free_options([]) == []


def test_found_by_digest_wherever(paper):
    """A finished run at any depth and of any name; not an artifact with the same options, not a run of other options,
    and an unfinished run is gone on with unless it is a sweep's.
    """
    runs = Path("runs")
    first, second, third, fourth = table_runs_of(rows_of(paper), [1, 2], [])
    done = made_run(first, runs / "deep" / "er", SCORES)
    shutil.copytree(done.folder, runs / "mlartifacts" / "copy")
    (runs / "mlartifacts" / "copy" / "run.json").unlink()
    for table_run, parent in ((second, None), (third, "../../sweep")):
        folder = made_run(table_run, runs / f"of {parent is None}", SCORES).folder
        (folder / "result.json").unlink()
        about = json.loads((folder / "run.json").read_text()) | {"parent": parent}
        write_json(folder / "run.json", about)
    found = index_runs(runs)
    table_runs = attach_folders([first, second, third, fourth], found)
    assert [c.folder for c in table_runs] == [done.folder, None, None, None]
    jobs = jobs_of(table_runs, found, runs, print)
    assert [job.run.digest for job in jobs] == [second.digest, third.digest, fourth.digest]
    assert jobs[0].folder == (runs / "of True" / "digits-fedalign-s1").resolve()
    assert jobs[1].folder == Path(f"runs/digits-fedavg-s2-{third.digest[:8]}").resolve()
    assert not jobs[1].folder.exists()


def test_the_test_split_is_scored_once_and_runs_that_scored_it_always_are_found(paper):
    """Where the paper reports the selected round, and the command does not say otherwise."""
    runs = Path("runs")
    once, other = table_runs_of(rows_of(paper), [1], [], reported="last")
    assert once.experiment.evaluation.test == "last"
    assert once.has_preset_options
    check_has_scores(paper, [once])
    for words in ([], ["--evaluation.test", "always"]):
        always = table_runs_of(rows_of(paper), [1], words, reported="last" if words else "last5")
        assert [c.experiment.evaluation.test for c in always] == ["always", "always"]
        assert all(c.has_preset_options for c in always)
    assert always[0].digest != once.digest
    done = made_run(always[0], runs, SCORES)
    folder = made_run(always[1], runs, SCORES).folder
    (folder / "result.json").unlink()
    index = index_runs(runs)
    found = attach_folders([once, other], index)
    assert found[0].folder == done.folder
    assert [c.digest for c in found] == [c.digest for c in always]
    assert [job.folder for job in jobs_of(found, index, runs, print)] == [folder.resolve()]


def test_one_experiment_is_one_job(paper):
    """Two rows may be the same options, as in two tables of a paper."""
    table_runs = table_runs_of(rows_of(paper), [1], [])
    twin = replace(table_runs[0], row=replace(table_runs[0].row, label="again"))
    assert len(jobs_of([*table_runs, twin], index_runs(Path("runs")), Path("runs"), print)) == 2


def test_two_runs_with_other_weights_are_told(paper):
    """The same options and seed give the same weights, or the reader learns that they did not."""
    table_runs = table_runs_of(rows_of(paper), [1], [])
    made_run(table_runs[0], Path("runs/a"), SCORES)
    made_run(table_runs[0], Path("runs/b"), SCORES)
    assert index_runs(Path("runs")).notes(table_runs) == []
    made_run(table_runs[0], Path("runs/b"), SCORES, checksum="other")
    (note,) = index_runs(Path("runs")).notes(table_runs)
    assert note == (
        "digits/fedavg seed 1: runs/a/digits-fedavg-s1 is shown; runs/b/digits-fedavg-s1: the same options and seed,"
        " other weights"
    )


def test_runs_of_an_earlier_epoch_are_found_and_marked(paper):
    """They differ in last bits alone, and nobody wants to train them again."""
    one = table_runs_of(rows_of(paper), [1], [])[0]
    made = made_run(one, Path("runs"), SCORES)
    (attached,) = attach_folders([one], index_runs(Path("runs")))
    assert (attached.folder, notes_on_earlier_epochs([attached])) == (made.folder, [])
    result = json.loads((made.folder / "result.json").read_text())
    for epoch, found in ((SAME_TO_ROUNDING[0], True), (1, False)):
        (made.folder / "result.json").write_text(json.dumps(result | {"digest": digest(one.experiment, epoch)}))
        (attached,) = attach_folders([one], index_runs(Path("runs")))
        assert (attached.folder == made.folder, attached.digest) == (found, one.digest)
        lines = ["1 of 1 runs are of an earlier version, whose last bits differ (epoch)."] if found else []
        assert notes_on_earlier_epochs([attached]) == lines


def test_runs_that_kept_no_states_are_said(paper):
    """The option makes no other run, so that one which had finished without it counts as done."""
    asked = table_runs_of(rows_of(paper), [1], ["--evaluation.save_state_every", "1"])
    one, two = (made_run(c, Path("runs"), SCORES) for c in asked if c.row.data == "Digits")
    (line,) = notes_without_states([one, two])
    assert line.startswith("--evaluation.save_state_every: 2 of 2 runs had finished without it and have no states")
    (one.folder / "server_states").mkdir()
    assert f"({two.folder})" in notes_without_states([one, two])[0]
    (two.folder / "server_states").mkdir()
    assert notes_without_states([one, two]) == []
    plain = table_runs_of(rows_of(paper), [2], [])
    assert notes_without_states([made_run(plain[0], Path("runs"), SCORES), asked[-1]]) == []


def test_runs_of_other_data_are_told(paper):
    """Scores on data that were prepared in two ways do not stand beside each other unremarked."""
    one, two = (c for c in table_runs_of(rows_of(paper), [1], []) if c.row.data == "Digits")
    first = made_run(one, Path("runs"), SCORES, tags={"data_digest": "new"})
    again = made_run(two, Path("runs"), SCORES, tags={"data_digest": "new"})
    assert notes_on_other_data([first, again, replace(one, seed=2)]) == []
    again = made_run(two, Path("runs"), SCORES, tags={"data_digest": "old"})
    (line,) = notes_on_other_data([first, again])
    assert line == (
        f"Digits seed 1: the data were prepared in 2 ways: {first.folder}; against {again.folder}."
        " Move the older runs away and call again: they are run anew"
    )
    other = made_run(replace(two, seed=2), Path("runs"), SCORES, tags={"data_digest": "third"})
    assert notes_on_other_data([first, other]) == []
    assert main(["table", "toy", "--show", "--seeds", "1"]) == 0
    assert line in Path("runs/table-toy/table.md").read_text()


def test_a_folder_that_cannot_be_read_is_left_out_and_named(paper):
    """A result of another tool, say: it is none of the table's."""
    Path("runs/foreign").mkdir(parents=True)
    write_json(Path("runs/foreign/run.json"), {"any": 1})
    Path("runs/foreign/result.json").write_text('{"scores": [1, 2]}')
    assert main(["table", "toy", "--show", "--seeds", "1"]) == 0
    assert "left out: runs/foreign/result.json is damaged" in Path("runs/table-toy/table.md").read_text()


def test_a_damaged_run_of_the_table_is_not_trained_again(paper):
    one = next(run for run in table_runs_of(rows_of(paper), [1], []) if run.row.data == "Digits")
    folder = made_run(one, Path("runs"), SCORES).folder
    write_config(folder, one.experiment)
    (folder / "result.json").write_text('{"scores": [1, 2]}')
    index = index_runs(Path("runs"))
    with pytest.raises(InputError, match=r"result\.json is damaged"):
        index.check([one])
    index.check([replace(one, digest="another")])


def test_missing_data_are_told(tmp_path, monkeypatch, paper, capsys):
    """The data set is left out with where to get it; nothing runs, nothing fails."""
    monkeypatch.delenv("ANCHORFL_DATA", raising=False)
    monkeypatch.setitem(papers.PAPERS, "toy", toy(tmp_path, R8, data={"R8-8": "r8-8"}))
    table_runs = table_runs_of(rows_of(papers.PAPERS["toy"]), [1, 2], [])
    absent = missing_data(jobs_of(table_runs, index_runs(Path("runs")), Path("runs"), print))
    assert list(absent) == ["r8-8"]
    assert main(["table", "toy", "--tracking.uri", "none"]) == 0
    said = capsys.readouterr().out
    line = next(line for line in said.splitlines() if line.startswith("R8-8 is left out: "))
    assert "r8-train-stemmed.txt" in line
    assert "Get the files from http" in line
    assert "2 runs in this table: 0 found in runs, 0 to run" in said
    assert line in Path("runs/table-toy/table.md").read_text()


def test_bad_input_stops_its_runs_alone(paper):
    """A names table that is not there stops FedAlign's runs and not FedAvg's, and is told once for all seeds."""
    table_runs = table_runs_of(rows_of(paper), [1, 2], [])
    table = replace(table_runs[0].experiment.class_embeddings, init="cooccurrence", table="not there.csv")
    named = [replace(c, experiment=replace(c.experiment, class_embeddings=table)) for c in table_runs]
    jobs = jobs_of(named, index_runs(Path("runs")), Path("runs"), print)
    said: list[str] = []
    ready = prepare_all(jobs, said.append)
    assert set(ready.run_specs) == {c.digest for c in table_runs if c.row.name == "fedavg"}
    (line,) = failure_lines(named, ready.failures)
    assert line.startswith("digits/fedalign seeds 1, 2 failed: class_embeddings.table")
    assert len(said) == len(set(said))


@pytest.mark.parametrize("order", [1, -1])
def test_options_that_do_not_fit_the_clients_of_the_data_stop_their_runs_alone(order, tmp_path):
    """How many clients there are is known with the data. It was a traceback, or all runs were blamed."""
    words = "suite --data suite-digits-one-class --rows fedavg --seeds 0 --task.clients 0"
    args = parse_args([*words.split(), "--vary", "federation.clients_per_round=5,100"])
    jobs = jobs_of(TableCommand(args).table_runs, index_runs(tmp_path), tmp_path, print)
    ready = prepare_all(jobs[::order], lambda _: None)
    assert [spec.experiment.federation.clients_per_round for spec in ready.run_specs.values()] == [5]
    assert [spec.experiment.task.clients for spec in ready.run_specs.values()] == [10]
    assert list(ready.failures.values()) == ["federation.clients_per_round = 100 exceeds task.clients = 10: lower it"]


def test_rows_that_are_one_experiment_are_counted_once(paper, capsys):
    twin = table_runs_of(rows_of(paper), [1], [])[0]
    command = TableCommand(parse_args(["fedalign", "--data", "r8-8", "--rows", "fedavg", "--seeds", "1"]))
    command._log_counts([twin, replace(twin, row=replace(twin.row, label="again"))], [])
    assert capsys.readouterr().out == "1 runs in this table: 0 found in runs, 0 to run\n"


def test_arguments():
    got = parse_args(["fedalign", "--data", "r8-8,es-5", "--seeds", "1,2", "--federation.rounds", "2", "--runs", "r"])
    assert (got.data, got.rows, got.seeds, got.overrides) == (
        ["r8-8", "es-5"],
        [],
        [1, 2],
        ["--federation.rounds", "2"],
    )
    assert (got.runs, got.out, got.parallel, got.show) == (Path("r"), Path("r/table-fedalign"), 0, False)
    assert parse_args(["fedalign"]).seeds == [4321, 4322, 4323, 4324, 4325]
    assert parse_args(["fedalign", "--show", "--rows", "fedavg"]).command == "anchorfl table fedalign --rows fedavg"
    for arguments, message in (
        ([], "table needs a paper: fedalign"),
        (["--show"], "table needs a paper: fedalign"),
        (["fedalign", "--seeds", "1,x"], "must be whole numbers"),
        (["fedalign", "--seeds", "1,1"], "one seed twice"),
        (["fedalign", "--parallel", "-1"], "must be at least 0"),
        (["fedalign", "--parallel", "many"], "invalid int value"),
    ):
        with pytest.raises(InputError, match=message):
            parse_args(arguments)


def test_bad_arguments_are_one_line(capsys):
    assert main(["table", "fedalign", "--rows", "fedavgg"]) == 2
    assert main(["table", "fedalign", "--show", "--federation.round", "3"]) == 2
    assert "no option --federation.round (did you mean 'federation.rounds'?)" in capsys.readouterr().err
    assert main(["table", "--help"]) == 0
    assert "usage: anchorfl table PAPER" in capsys.readouterr().out


def test_show_runs_nothing(paper, capsys):
    """The page of what is there, without a record, also while another call holds the folder."""
    made_run(table_runs_of(rows_of(paper), [1], [])[0], Path("runs"), SCORES)
    with lock_run(Path("runs/table-toy")):
        assert main(["table", "toy", "--show"]) == 0
        assert main(["table", "toy"]) == 2
    said = capsys.readouterr().out
    assert "FedAvg    macro F1  20.00         20.00  +0.00       1 of 2  reproduced" in said
    assert "1 of 4 runs" in said
    assert {p.name for p in Path("runs/table-toy").iterdir()} == {
        "table.md", "table.csv", "reproducibility.md", "figures", ".lock",
    }  # fmt: skip
    assert not Path("runs/mlflow.db").exists()


def test_json_is_alone_on_standard_output(paper, capsys):
    table_runs = table_runs_of(rows_of(paper), [1, 2], [])
    for at, run in enumerate(table_runs):
        made_run(run, Path("runs"), {name: [0.0, 0.1 * at] for name in ("test/f1_macro", "test/accuracy")})
    assert main(["table", "toy", "--show", "--json", "--seeds", "1,2"]) == 0
    out, err = capsys.readouterr()
    content = json.loads(out)
    assert {row["preset"] for row in content["rows"]} == {"digits/fedavg", "digits/fedalign"}
    assert content["rows"][0]["seed_1"] == 0.0
    assert content["files"][0] == "runs/table-toy/table.md"
    assert "--json" not in Path("runs/table-toy/table.md").read_text()
    assert err == ""


def test_the_page_is_no_run(paper, capsys):
    """--out may not be the folder of a run."""
    Path("runs/x").mkdir(parents=True)
    write_config(Path("runs/x"), read_preset("digits/fedavg"))
    assert main(["table", "toy", "--out", "runs/x", "--tracking.uri", "none"]) == 2
    assert "runs/x holds a run: give another --out" in capsys.readouterr().err
