"""Bad input that a worker finds is the one line that it is without Ray."""

from __future__ import annotations

import pytest
from PIL import Image

from anchorfl.pipeline.cli.main import main

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_running")]


@pytest.mark.parametrize("executor", ["serial", "ray"])
def test_a_truncated_image_is_one_line(tmp_path, monkeypatch, capfd, executor):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANCHORFL_CACHE", str(tmp_path / "cache"))
    rows = ["image,label"]
    for row in range(120):
        Image.effect_noise((16, 16), 50).save(tmp_path / f"{row}.png")
        rows.append(f"{row}.png,{'abcdef'[row % 6]}")
    whole = (tmp_path / "7.png").read_bytes()
    (tmp_path / "7.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    words = ["--task.file", "t.csv", "--task.label_columns", "label", "--task.input_columns", "image"]
    assert main(["run", *words, "--cluster.executor", executor, "--tracking.uri", "none"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "7.png" in line
    assert "UDF" not in line
