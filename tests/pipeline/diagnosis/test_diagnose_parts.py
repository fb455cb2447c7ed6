"""The parts of a diagnosis, on cases whose answer is known."""

from __future__ import annotations

import itertools
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.text import Text
from PIL import Image

from anchorfl.models.heads import LabelHead
from anchorfl.pipeline.diagnosis import figures, truth
from anchorfl.pipeline.diagnosis.agreement import _summarize, agreement_of, embed, select_rows
from anchorfl.pipeline.diagnosis.analysis import open_analysis
from anchorfl.pipeline.diagnosis.clients import check_clients, farthest
from anchorfl.pipeline.diagnosis.diagnose import DiagnoseOptions, diagnose
from anchorfl.pipeline.diagnosis.divergence import Contrast, _write, contrasts, proxy_a_distance
from anchorfl.pipeline.diagnosis.embeddings import (
    chosen_classes,
    cosines,
    label_pmi,
    order_classes,
    rank_correlation,
)
from anchorfl.pipeline.diagnosis.figures import Beside, draw_confusion, draw_frames, draw_matrices, draw_precision
from anchorfl.pipeline.diagnosis.pseudo_labels import Counts, _summary, judge
from anchorfl.pipeline.diagnosis.result import write_table
from anchorfl.pipeline.diagnosis.truth import Truth
from anchorfl.pipeline.methods import METHODS
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.contract import Card, ClientData
from anchorfl.tasks.errors import InputError
from anchorfl.testing import small_experiment
from tests.runs import quiet


def rng(seed=0):
    return np.random.default_rng(seed)


def test_samples_of_one_distribution_are_at_0_and_separable_ones_at_2():
    same = [proxy_a_distance(*rng(s).normal(size=(2, 200, 8)), rng(s)) for s in range(20)]
    assert abs(np.mean(same)) < 0.08  # 20 means of 200 held-out rows: standard error 0.03
    assert min(same) < 0  # not cut off, or the mean would be above 0
    a, b = rng().normal(size=(2, 200, 8))
    assert proxy_a_distance(a, b + 10, rng()) == 2.0
    flat = np.zeros((200, 8))
    assert proxy_a_distance(flat, flat, rng()) == 0.0  # nothing to learn from: half of the held-out rows are right


def test_the_error_is_that_of_rows_that_were_not_trained_on():
    """In so many dimensions every training set is separable; the held-out halves are not."""
    a, b = rng(3).normal(size=(2, 100, 500))
    assert abs(proxy_a_distance(a, b, rng())) < 0.6


def test_known_overlap():
    """A quarter of either sample cannot be told apart: error 1/8, distance 2 (1 - 2/8)."""

    def sample(centre, seed):
        x = rng(seed).normal(size=(4000, 3)) * 0.01
        x[:3000, 0] += centre
        return rng(seed + 9).permutation(x)

    assert proxy_a_distance(sample(-5, 1), sample(5, 2), rng()) == pytest.approx(1.5, abs=0.08)


@pytest.mark.parametrize("sizes", [(10, 9), (3, 3)])
def test_unequal_or_tiny_samples_are_refused(sizes):
    with pytest.raises(ValueError, match="two samples of one size"):
        proxy_a_distance(np.zeros((sizes[0], 2)), np.zeros((sizes[1], 2)), rng())


def test_a_row_of_several_clients_is_in_a_pool_once():
    ids = [np.arange(100), np.arange(50, 150), np.arange(50, 250)]
    every = np.concatenate(ids)
    pooled = [c for c in contrasts(ids, (100, 100, 200), 9, rng()) if c.kind == "pooled"]
    assert len(pooled) == 3
    for c in pooled:
        assert len(np.unique(every[c.b_R])) == len(c.b_R) == len(c.a_R)
        assert not np.isin(every[c.a_R], every[c.b_R]).any()


def test_contrasts_are_disjoint_equal_and_the_pool_has_the_shares_of_the_clients():
    sizes = (100, 300, 600, 5)
    ids = [rng(m).permutation(size) + 1000 * m for m, size in enumerate(sizes)]
    row = np.concatenate(ids)
    found = contrasts(ids, sizes, 100, rng())
    pairs = [(c.client, c.other) for c in found if c.kind == "pair"]
    assert pairs == [(0, 1), (0, 2), (1, 2)]  # five rows are too few
    for c in found:
        assert len(c.a_R) == len(c.b_R)
        assert not set(row[c.a_R]) & set(row[c.b_R])
        assert set(row[c.a_R] // 1000) == {c.client}
    rest = next(c for c in found if c.kind == "pooled" and c.client == 1)
    share = np.bincount(row[rest.b_R] // 1000, minlength=4) / len(rest.b_R)
    assert np.allclose(share, np.array(sizes) / sum(sizes), atol=0.01)
    assert len([c for c in contrasts(ids, sizes, 2, rng()) if c.kind == "pair"]) <= 2


def test_a_row_of_two_clients_is_on_one_side_only():
    ids = [np.arange(60), np.arange(30, 90)]
    (c,) = [c for c in contrasts(ids, (60, 60), 9, rng()) if c.kind == "pair"]
    row = np.concatenate(ids)
    assert len(c.a_R) == 30
    assert not set(row[c.a_R]) & set(row[c.b_R])


def labels(y, known):
    y, known = torch.tensor(y, dtype=torch.float32), torch.tensor(known, dtype=torch.float32)
    return ClientData(torch.zeros(len(y), 1), y, known, known)


def test_labels_that_were_hidden_in_identified_classes_are_hidden(tmp_path):
    """FedMLP tags them; the line said that none is hidden, of 149 right ones."""
    hidden = {"hidden_labels": 0.7, "partition": "iid"}
    e = small_experiment(METHODS["fedmlp"](warm_up=1, positive_share=0.5), "toy-multi", task=hidden)
    run(e, tmp_path / "run", quiet)
    (line,) = diagnose(tmp_path / "run", DiagnoseOptions(parts=("pseudo",)))
    got = re.search(r"(\d+) of (\d+) right .* (0\.\d+) of the hidden ones", line)
    assert got, line
    assert 0 < float(got[3]) <= 1


def test_judge_counts_by_hand():
    """Four rows, three classes; the client identifies class 0. Row 3's truth in class 2 is not in the raw data."""
    given = labels([[1, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]], [[1, 0, 0]] * 4)
    annotated = labels([[1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1]], [[1, 1, 0], [1, 1, 0], [1, 1, 1], [1, 0, 1]])
    truth = np.array([[1, 0, 0], [0, 1, 1], [0, 0, 1], [0, 1, 1]], dtype=bool)
    has = np.ones((4, 3), dtype=bool)
    has[3, 2] = False
    c = judge(given, annotated, np.array([False, True, True]), truth, has)
    assert c.open.tolist() == [0, 4, 3]
    assert c.hidden.tolist() == [0, 2, 2]
    assert c.positive.tolist() == [0, 2, 0]
    assert c.right.tolist() == [0, 1, 0]
    assert c.negative.tolist() == [0, 1, 1]
    assert c.negative_right.tolist() == [0, 1, 0]
    assert c.unjudged.tolist() == [0, 0, 1]
    table = c.table()
    assert table["precision"][1] == 0.5
    assert table["coverage"][1] == 0.5
    assert table["chance"].tolist()[1:] == [0.5, 2 / 3]
    assert np.isnan(table["precision"][[0, 2]]).all()
    both = (c + c).total()
    assert (both.positive.tolist(), both.right.tolist(), both.open.tolist()) == ([4], [2], [14])


def card(client, classes, rows=10):
    aware = torch.zeros(6, dtype=torch.bool)
    aware[list(classes)] = True
    return Card(client, rows, torch.zeros(6, dtype=torch.int64), aware)


def test_the_clients_that_share_least():
    cards = [card(0, (0, 1)), card(1, (1, 2)), card(2, (3, 4, 5)), card(3, (2, 3)), card(4, (), rows=0)]
    assert farthest(cards) == (0, 2)  # as (1, 2) and (0, 3), but the first with most classes
    assert check_clients((3, 1), cards) == (3, 1)
    for wrong in ((0, 4), (0, 9)):
        with pytest.raises(InputError, match=rf"no client {wrong[1]} with rows; the clients are 0\.\.4"):
            check_clients(wrong, cards)
    with pytest.raises(InputError, match="only 1 client has rows"):
        farthest(cards[3:])


def test_the_clients_that_share_least_are_those_of_a_search_over_all_pairs():
    draw = rng()
    for _ in range(50):
        cards = [card(m, np.flatnonzero(draw.random(6) < 0.4), rows=int(draw.integers(2))) for m in range(7)]
        there = [c for c in cards if c.num_examples]
        if len(there) < 2:
            continue
        best = min(
            itertools.combinations(there, 2),
            key=lambda p: (
                int((p[0].identified_C & p[1].identified_C).sum()),
                -int((p[0].identified_C | p[1].identified_C).sum()),
            ),
        )
        assert farthest(cards) == (best[0].client, best[1].client)


def test_no_two_are_chosen_of_thousands():
    with pytest.raises(InputError, match=r"^1001 clients are too many to choose two of: name them with --clients 0,1"):
        farthest([card(m, (0,)) for m in range(1001)])


def test_rows_of_the_picture_are_even_over_the_classes():
    y = np.zeros((130, 3), dtype=bool)
    y[:100, 0] = y[100:110, 1] = y[110:125, 2] = True
    y[105:110, 0] = True  # also of the large class: the rarest counts
    place, class_ = select_rows(y, 40, rng())
    assert np.bincount(class_).tolist() == [15, 10, 15]
    assert (np.diff(place) > 0).all()
    assert place.max() < 125  # the rest have no class
    assert len(select_rows(y, 1000, rng())[0]) == 125


def frames(shift):
    """Make three models whose classes lie on axes; in the last one the classes change places by ``shift``."""
    class_N = np.repeat(np.arange(4), 25)
    noise = rng(5).normal(size=(3, 100, 4)) * 0.05
    axes = np.eye(4) * 3
    return np.stack([axes[class_N], axes[class_N], axes[(class_N + shift) % 4]]) + noise, class_N


def test_models_that_agree_and_models_that_do_not():
    same = agreement_of(*frames(0))
    assert same.rows_C.tolist() == [25] * 4
    assert (same.cosine_PC > 0.99).all()
    assert (same.match_PC == 1).all()
    assert (same.silhouette_C > 0.9).all()
    other = agreement_of(*frames(1))
    assert (other.cosine_PC[0] > 0.99).all()  # global and a
    assert (other.cosine_PC[1:] < 0.1).all()
    assert (other.match_PC[0] == 1).all()
    assert (other.match_PC[1:] == 0).all()
    assert (other.silhouette_C < 0.5).all()


def test_one_frame_holds_equal_points_together():
    z, class_N = frames(0)
    plane = embed(z[:, ::2], 3)
    assert plane.shape == (3, 50, 2)
    assert np.array_equal(plane, embed(z[:, ::2], 3))
    centre = np.stack([plane[:, class_N[::2] == c].mean(1) for c in range(4)])  # class x model x 2
    within = np.linalg.norm(centre[:, 0] - centre[:, 1], axis=-1).max()
    between = min(np.linalg.norm(centre[i, 0] - centre[j, 0]) for i in range(4) for j in range(i))
    assert within < between / 3


def test_spectral_order_brings_groups_together():
    group = np.array([0, 1, 0, 1, 2, 0, 2, 1])
    cosine = np.where(group[:, None] == group, 0.9, -0.5)
    np.fill_diagonal(cosine, 1)
    order, cluster = order_classes(cosine, 3, 1)
    assert sorted(order.tolist()) == list(range(8))
    assert (np.diff(group[order]) != 0).sum() == 2
    assert all(len(set(cluster[group == g])) == 1 for g in range(3))
    assert order_classes(np.eye(2), 2, 1)[0].tolist() == [0, 1]


def test_cosines_of_a_head():
    head = LabelHead(torch.tensor([[2.0, 0.0], [0.0, 3.0], [1.0, 1.0]]), 2, unit=True)
    assert np.allclose(cosines(head), [[1, 0, 0.5**0.5], [0, 1, 0.5**0.5], [0.5**0.5, 0.5**0.5, 1]], atol=1e-7)


def test_rank_correlation_over_pairs():
    a = np.array([[9.0, 1, 2, 3], [1, 9, 4, 5], [2, 4, 9, 6], [3, 5, 6, 9]])
    assert rank_correlation(a, a**3) == (pytest.approx(1), 6)
    assert rank_correlation(a, -a) == (pytest.approx(-1), 6)
    assert np.isnan(rank_correlation(a, np.zeros((4, 4)))[0])


def test_a_pair_that_is_unknown_is_left_out_of_the_rank_correlation():
    a = np.array([[9.0, 1, 2, 3], [1, 9, 4, 5], [2, 4, 9, 6], [3, 5, 6, 9]])
    b = a**3
    b[0, 3] = b[3, 0] = np.nan
    assert rank_correlation(a, b) == (pytest.approx(1), 5)
    rho, pairs = rank_correlation(a, np.full((4, 4), np.nan))
    assert np.isnan(rho)
    assert pairs == 0


def test_labels_that_never_stand_together_rank_lowest():
    a = np.array([[9.0, 1, 2, 3], [1, 9, 4, 5], [2, 4, 9, 6], [3, 5, 6, 9]])
    b = np.log(a)
    b[0, 1] = b[1, 0] = -np.inf
    assert rank_correlation(a, b) == (pytest.approx(1), 6)
    assert np.isnan(rank_correlation(a, np.full((4, 4), -np.inf))[0])


def test_classes_are_chosen_by_name_or_number():
    names = ("a", "b", "2", "c d")
    assert chosen_classes((), names) == [0, 1, 2, 3]
    assert chosen_classes(("c d", "1", "2"), names) == [1, 2, 3]
    for words in (("e", "a"), ("4", "a"), ("a", "0"), ("-1", "a")):
        with pytest.raises(InputError, match="--classes"):
            chosen_classes(words, names)


def test_the_pmi_of_two_labels_that_no_row_has_together_is_unknown(monkeypatch):
    """Rows 0 to 3 are labeled for classes 0 and 1, rows 4 and 5 for 2 alone; class 3 is never there."""
    y = Labels.of_matrix(
        np.array([[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0] * 4], bool)
    )
    given = Labels.of_matrix(np.array([[1, 1, 0, 1]] * 4 + [[0, 0, 1, 0]] * 2, bool))
    monkeypatch.setattr("anchorfl.pipeline.diagnosis.embeddings.read_truth", lambda *_: Truth(y, given))
    plan = SimpleNamespace(clients=[SimpleNamespace(rows=np.arange(4)), SimpleNamespace(rows=np.arange(4, 6))])
    prepared = SimpleNamespace(manifest=SimpleNamespace(kind="multi"), plan=lambda: plan)
    pmi = label_pmi(SimpleNamespace(prepared=prepared), print)
    assert pmi[0, 1] == pmi[1, 0] == 0  # measured: half of the rows with one have the other
    assert pmi[0, 0] == pytest.approx(np.log(2))  # log (1/2) / (1/2)^2
    assert np.isnan(pmi[:2, 2]).all()  # no row has both
    assert np.isnan(pmi[3]).all()  # never there
    y = Labels.of_matrix(np.array([[1, 0, 0, 0], [0, 1, 0, 0]] * 3, bool))
    monkeypatch.setattr("anchorfl.pipeline.diagnosis.embeddings.read_truth", lambda *_: Truth(y, None))
    assert np.isneginf(label_pmi(SimpleNamespace(prepared=prepared), print)[0, 1])  # never together


def test_no_share_is_printed_as_nan():
    none = np.zeros(2, np.int64)
    for counts in (Counts(*[none] * 7), Counts(none + 9, none + 2, *[none] * 5), Counts(none + 9, *[none] * 6)):
        assert "nan" not in _summary(counts.total()), counts
    some = Counts(none + 9, none + 2, none + 4, none + 1, none, none, none)
    assert _summary(some.total()) == "2 of 8 right (precision 0.250; at random 0.222), 0.500 of the hidden ones"


def test_tables_leave_out_what_is_not_a_number(tmp_path):
    write_table(tmp_path / "t.csv", ("a", "b"), [[1, float("nan")], ["x,y", 0.1234567891]])
    assert (tmp_path / "t.csv").read_text() == 'a,b\n1,\n"x,y",0.123457\n'


def test_many_classes_and_one_round_can_be_drawn(tmp_path):
    names = [f"a class with quite a long name {c}" for c in range(70)]
    z = rng().normal(size=(3, 140, 2))
    draw_frames(z, np.arange(140) % 70, names, np.ones((3, 70), bool), ("a", "b", "c"), tmp_path / "frames.png")
    precision = rng().random((1, 70))
    precision[0, 3] = np.nan
    draw_precision([5], {n: np.array([0.5]) for n in ("x", "y", "z")}, precision, names, tmp_path / "precision.png")
    cosine = np.corrcoef(rng().normal(size=(70, 9)))
    beside = [Beside(n, n, n, n == "pmi", np.zeros((70, 70)), float("nan"), 0) for n in ("names", "pmi")]
    draw_matrices(cosine, beside, np.arange(70), np.arange(70) // 10, names, tmp_path)
    for name in ("frames", "precision", "class_embeddings"):
        with Image.open(tmp_path / f"{name}.png") as picture:
            assert min(picture.size) > 200


def test_a_confusion_matrix_says_how_many_rows_and_leaves_zeros_blank(tmp_path):
    count = np.array([[7, 0, 2], [0, 5, 0], [0, 0, 0]])
    draw_confusion(count, ("cat", "dog", "fox"), tmp_path / "confusion.png")
    text = (tmp_path / "confusion.svg").read_text()
    cells = re.findall(r"<!-- (\d\.\d\d) -->", text)
    assert sorted(cells) == ["0.22", "0.78", "1.00"]
    for word in ("cat (9)", "fox (0)", "predicted class"):
        assert f"<!-- {word} -->" in text


def test_clusters_have_their_names_and_no_name_covers_another(tmp_path, monkeypatch):
    """Ten classes on nearly one spot, and three models: each name stands once in a panel, if there is room."""
    drawn = []
    real = figures.save
    monkeypatch.setattr(figures, "save", lambda figure, path: (drawn.append(figure), real(figure, path))[1])
    names = [f"class {c}" for c in range(10)]
    z = rng().normal(size=(3, 100, 2)) * 0.1
    z[:, 0] = 5  # the others fill a corner
    draw_frames(z, np.arange(100) % 10, names, np.ones((3, 10), bool), ("a", "b", "c"), tmp_path / "frames.png")
    drawn[0].draw_without_rendering()
    for ax in drawn[0].axes:
        boxes = [Text.get_window_extent(text) for text in ax.texts]
        assert len(boxes) >= 5
        assert len({text.get_text() for text in ax.texts}) == len(boxes)
        assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
        assert all(ax.bbox.contains(*box.min) and ax.bbox.contains(*box.max) for box in boxes)


def test_pairs_that_are_unknown_are_drawn_apart_from_those_that_are_0(tmp_path):
    """A cell without a number, in another shade than that of 0; one that is less than any has a third."""
    cosine = np.corrcoef(rng().normal(size=(4, 9)))
    pixels = []
    for pmi_01 in (0.0, np.nan, -np.inf):
        pmi = cosine * 0.5
        pmi[0, 1] = pmi[1, 0] = pmi_01
        beside = Beside("pmi", "PMI", "PMI of the labels", True, pmi, 0.5, 6)
        draw_matrices(cosine, [beside], np.arange(4), np.zeros(4, int), list("abcd"), tmp_path)
        with Image.open(tmp_path / "class_embeddings.png") as picture:
            pixels.append(np.asarray(picture.convert("L").resize((800, 400))))
    for one, other in itertools.combinations(pixels, 2):
        assert (one != other).sum() > 500


def test_agreed_classes_are_counted_by_the_models_match():
    part = _summarize(SimpleNamespace(last=SimpleNamespace(round=3)), agreement_of(*frames(1)), {}, (0, 1), 100)
    assert part.metrics[3]["agreement/agreed_classes"] == 0


def test_the_error_beside_a_distance_is_its_own(tmp_path):
    one = Contrast("pair", 0, 1, np.arange(20), np.arange(20, 40))
    _write([(1, one, 2.0), (1, one, 0.0)], tmp_path, {})
    lines = (tmp_path / "divergence.csv").read_text().splitlines()[1:]
    assert [line.split(",")[5:] for line in lines] == [["0", "2"], ["0.5", "0"]]


def test_true_labels_are_found_in_any_order_of_the_raw_rows(experiment, finished_run, monkeypatch):
    analysis = open_analysis(finished_run(experiment("fedavg", "toy-single")).folder, lambda line: None)
    plain = truth.read_truth(analysis, lambda line: None).labels.matrix()
    read = truth.read_rows

    def backwards(*given):
        table, task = read(*given)
        return table.take(np.arange(table.num_rows)[::-1]), task

    monkeypatch.setattr(truth, "read_rows", backwards)
    assert (truth.read_truth(analysis, lambda line: None).labels.matrix() == plain).all()
