"""The lines that a run shows of itself."""

import pytest

from anchorfl.pipeline.execution.cohort import WITHOUT_GPU, RoundOutcome
from anchorfl.pipeline.run.progress import NO_GPU_NOTE, Progress, format_bytes, format_duration


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0.0 MB"), (1.55e6, "1.6 MB"), (999.9e6, "999.9 MB"), (999.97e6, "1.0 GB"), (999.97e9, "1.0 TB"),
        (1291647e6, "1.3 TB"), (2.5e15, "2500.0 TB"),
    ],
)  # fmt: skip
def test_bytes_have_a_unit_that_can_be_read(count, text):
    assert format_bytes(count) == text


def test_seconds_as_a_clock_shows_them():
    assert [format_duration(s) for s in (0.4, 61, 3599.6, 7325)] == ["0:00", "1:01", "1:00:00", "2:02:05"]


def test_workers_without_their_gpu_are_said_once(capsys):
    progress = Progress(3)
    for round_, counts in ((1, {}), (2, {WITHOUT_GPU: 2.0}), (3, {WITHOUT_GPU: 1.0})):
        progress.round(round_, RoundOutcome((0, 1), loss=0.5, counts=counts), {}, 1.0)
    assert [line for line in capsys.readouterr().out.splitlines() if "GPU" in line] == [NO_GPU_NOTE]
