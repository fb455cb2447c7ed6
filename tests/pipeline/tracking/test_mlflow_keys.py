"""Names as MLflow accepts them."""

from __future__ import annotations

from mlflow.utils.validation import _validate_metric_name

from anchorfl.pipeline.tracking.mlflow_entities import KEY_LENGTH, key


def test_long_names_that_differ_stay_different():
    """Those of a row of one's own with many options lost their ends: percent and megabytes were one metric."""
    row = "suite-digits-masks-2/" + " ".join(f"--method.option_{i} {i}.5" for i in range(12))
    keys = {key(f"{row}/{metric}") for metric in ("macro_f1", "accuracy", "mb_down", "mb_up")}
    assert len(keys) == 4
    assert max(map(len, keys)) <= KEY_LENGTH
    assert any(name.endswith("/mb_up") for name in keys)
    assert key("test/f1_macro") == "test/f1_macro"


def test_names_of_classes_give_keys_of_their_own_that_mlflow_takes():
    names = [
        f"precision/{name}"
        for name in ("<50", ">50", "_50", "w/", "w", "a//b", "a/b", "../x", "/x", ".5", ".", "a/./b")
    ]
    keys = [key(name) for name in names]
    assert len(set(keys)) == len(names)
    for each in keys:
        _validate_metric_name(each)
