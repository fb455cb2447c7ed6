"""``anchorfl new``: a package of one's own with a method, network, task or tracker in it, whose tests pass at once."""

from __future__ import annotations

import argparse
import keyword
import shlex
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from string import Template

from anchorfl.models.options import NETWORKS
from anchorfl.pipeline.storage.atomic_files import write_atomically
from anchorfl.pipeline.terminal import say
from anchorfl.pipeline.tracking.other_trackers import HOME
from anchorfl.tasks import plugins
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.plugins import NAME, plugin_names

PYPROJECT = """[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "$name"
version = "0.1.0"
description = "$title"
requires-python = ">=3.11"
dependencies = ["anchorfl>=$version,<$next"] # plug-ins of another AnchorFL are refused in one line

[project.optional-dependencies]
dev = ["pytest>=8"]

$entry_points
[tool.setuptools.packages.find]
where = ["src"]

[tool.pytest.ini_options]
pythonpath = ["src"]
testpaths = ["tests"]
"""
README = """# $name

$title

```sh
pip install -e ".[dev]"
pytest                      # seconds in one process and forked workers, and once on Ray
anchorfl run $name.toml
$more
```

$what
"""
METHOD = '''"""$class_: FedAvg, but every client is pulled towards the weights that it was sent.

Put your own idea in the place of the pull.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anchorfl.pipeline.algorithm.contract import Averaging, AveragingTrainer, ClientContext, ServerState


class ${class_}Trainer(AveragingTrainer):
    """The client's half: it lives for one client in one round."""

    def __init__(self, ctx: ClientContext[ServerState], strength: float) -> None:
        super().__init__(ctx)
        self.strength = strength

    def penalty(self) -> Tensor:
        """Return what is added to the loss once per step."""
        sent = self.ctx.state.weights
        gaps = [(p - sent[name]).pow(2).sum() for name, p in self.model.named_parameters()]
        return self.strength / 2 * torch.stack(gaps).sum()


@dataclass(frozen=True, kw_only=True)
class $class_(Averaging):
    """The method: its options, and the server's half, which is FedAvg's here."""

    name = "$name"

    strength: float = 0.01
    """Weight of the pull, >= 0; 0 is FedAvg."""  # what --help says of it

    def __post_init__(self) -> None:
        if not self.strength >= 0:
            raise ValueError(f"method.strength = {self.strength}: must be at least 0")

    def trainer(self, ctx: ClientContext[ServerState]) -> ${class_}Trainer:
        """Return the client half for one round."""
        return ${class_}Trainer(ctx, self.strength)
'''
SPACE = '''"""What a sweep searches where nobody says it: ``anchorfl sweep $name.toml``."""

from anchorfl.tuning.search.search_space import MethodSpace, Range

SPACE = MethodSpace(
    {"strength": Range(1e-4, 1, "log", reason="from hardly any pull to one that keeps clients where they were")}
)
'''
TEST_METHOD = '''"""What every method promises, and that this one is FedAvg without its pull."""

from anchorfl.testing import check_limit, check_method
from $module.method import $class_


def test_contract(tmp_path):
    check_method($class_(), tmp_path)


def test_without_its_pull_it_is_fedavg(tmp_path):
    check_limit($class_(strength=0.0), "fedavg", tmp_path)
'''
METHOD_PRESET = """# $class_ on scikit-learn's digits: 10 clients, each identifies 3 of the 10 classes.
extends = "digits/fedavg"

[method]
name = "$name"
strength = 0.01
"""
TASK = '''"""$class_: made-up windows of a sensor, 3 classes, single-label. Put your own data in their place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from anchorfl.tasks.arrays.arrow import fixed_lists, list_parts
from anchorfl.tasks.contract import InputSpec, Source, Task
from anchorfl.tasks.options import TaskOptions

CLASSES = ("circle", "shake", "swipe")
ROWS, STEPS, AXES = 300, 10, 3


def task() -> Task:
    """Return the task. Files of yours are named in its source, and found below ``folder`` in $$ANCHORFL_DATA."""
    return Task(
        name="$name",
        title="$title",
        class_names=CLASSES,
        kind="single",
        payload="values",
        source=Source(files=(), url="made in memory", licence="none needed"),
        folder="",
        read=read,
        fit=fit,
        encode=encode,
    )


def read(folder: Path | None, options: TaskOptions) -> Any:
    """Return the raw rows, always the same, every fifth a test row. Never touches the network."""
    rng = np.random.default_rng(0)
    label_N = np.arange(ROWS) % len(CLASSES)
    time_S = np.linspace(0, 1, STEPS)
    wave_CSA = np.stack([np.sin((2 + 3 * c) * time_S[:, None] + np.arange(AXES)) for c in range(len(CLASSES))])
    values_ND = (wave_CSA[label_N] + 0.3 * rng.standard_normal((ROWS, STEPS, AXES))).reshape(ROWS, -1)
    columns = {
        "row": np.arange(ROWS, dtype=np.int64),
        "split": pa.array(["test" if row % 5 == 0 else "train" for row in range(ROWS)]),
        "labels": pa.array([[int(label)] for label in label_N], pa.list_(pa.int32())),
        "values": fixed_lists(values_ND.astype(np.float32)),
    }
    return pa.table(columns)


def fit(train: Any, options: TaskOptions) -> InputSpec:
    """Return a series of steps with features; what is learnt from rows is learnt from ``train`` alone."""
    return InputSpec("series", (STEPS, AXES))


def encode(table: Any, spec: InputSpec) -> Any:
    """Return the rows with ``x``, what the network takes, in place of ``values``."""
    values, _ = list_parts(table["values"])
    x_ND = values.astype(np.float32).reshape(-1, STEPS * AXES)
    return table.drop_columns(["values"]).append_column("x", fixed_lists(x_ND))
'''
TEST_TASK = '''"""What every task promises."""

from anchorfl.testing import check_task


def test_contract(tmp_path):
    check_task("$module.task:task", tmp_path)
'''
TASK_PRESET = """# FedAlign on $name: 10 clients, each identifies 2 of the 3 classes.
extends = "digits/fedalign"

[task]
name = "$name"
classes_per_client = 2
"""
NETWORK = '''"""$class_: two hidden layers over all numbers of a sample. Put your own network in their place."""

from __future__ import annotations

import math

from torch import Tensor, nn

from anchorfl import EncoderSpec


class $class_(nn.Module):
    """An encoder for images and series: x [B, ...] -> z [B, width]. The head is the method's."""

    def __init__(self, spec: EncoderSpec) -> None:
        super().__init__()
        if spec.kind not in ("image", "series"):
            raise ValueError(f"it is for images and series, and the input is of kind {spec.kind!r}")
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(math.prod(spec.shape), spec.width),
            nn.ReLU(),
            nn.Dropout(spec.dropout),
            nn.Linear(spec.width, spec.width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the representations of a batch."""
        z_BD: Tensor = self.layers(x)
        return z_BD
'''
TEST_NETWORK = '''"""What every network promises."""

from anchorfl.testing import check_network


def test_contract(tmp_path):
    check_network("$module.network:$class_", "toy-multi", tmp_path)
'''
NETWORK_PRESET = """# $class_ on scikit-learn's digits: 10 clients, each identifies 3 of the 10 classes.
extends = "digits/fedalign"

[model]
network = "$name"
width = 64
dropout = 0.2
"""
TRACKER = '''"""$class_: a line per round in a text file of the run folder. Put your own service in its place."""

from __future__ import annotations

from pathlib import Path

from anchorfl.pipeline.storage.run_record import RoundRecord, RunInfo, Status


class $class_:
    """Gets a run's numbers beside its folder and MLflow. What it raises costs the run nothing."""

    def __init__(self, folder: Path, resume_at: int) -> None:
        """Open the record. resume_at: the round that comes next; 0: the run is new."""
        self.file = folder / "$name.txt"
        lines = self.file.read_text().splitlines(keepends=True) if resume_at and self.file.exists() else []
        self.lines = [line for line in lines if int(line.split()[1]) < resume_at]

    def begin(self, info: RunInfo) -> None:
        """Take the run's name, options and tags."""

    def round(self, record: RoundRecord) -> None:
        """Take a round: ``record.metrics`` by name, ``record.per_class`` by score and class."""
        score = record.metrics.get("validation/f1_macro", float("nan"))
        self.lines.append(f"round {record.round} {score:.4f}\\n")
        self.file.write_text("".join(self.lines))

    def artifact(self, path: Path) -> None:
        """Take a file or folder, which stays where it is."""

    def end(self, status: Status) -> None:
        """Close the record: FINISHED, FAILED or KILLED."""
'''
TEST_TRACKER = '''"""It has every round once, also of a run that was stopped and went on."""

from anchorfl import resume, run
from anchorfl.testing import small_experiment, stopped_before


def test_it_has_every_round_once(tmp_path):
    experiment = small_experiment(tracking={"trackers": "$module.tracker:$class_"})
    with stopped_before(2):
        run(experiment, folder=tmp_path / "run")
    resume(tmp_path / "run")
    lines = (tmp_path / "run" / "$name.txt").read_text().splitlines()
    assert [line.split()[:2] for line in lines] == [["round", str(number)] for number in range(4)]
'''
TRACKER_PRESET = """# FedAvg on scikit-learn's digits, with $class_ as a further tracker.
extends = "digits/fedavg"

[tracking]
trackers = "$name"
"""
FILES: Mapping[str, Mapping[str, str]] = {
    "method": {
        "src/$module/method.py": METHOD,
        "src/$module/search_space.py": SPACE,
        "tests/test_method.py": TEST_METHOD,
        "$name.toml": METHOD_PRESET,
    },
    "network": {
        "src/$module/network.py": NETWORK,
        "tests/test_network.py": TEST_NETWORK,
        "$name.toml": NETWORK_PRESET,
    },
    "task": {
        "src/$module/task.py": TASK,
        "tests/test_task.py": TEST_TASK,
        "$name.toml": TASK_PRESET,
    },
    "tracker": {
        "src/$module/tracker.py": TRACKER,
        "tests/test_tracker.py": TEST_TRACKER,
        "$name.toml": TRACKER_PRESET,
    },
}
"""What is made -> path -> text."""
ENTRY_POINTS = {
    "method": (
        '[project.entry-points."anchorfl.methods"]\n$name = "$module.method:$class_"\n\n'
        '[project.entry-points."anchorfl.search_spaces"]\n$name = "$module.search_space:SPACE"\n'
    ),
    "network": '[project.entry-points."anchorfl.networks"]\n$name = "$module.network:$class_"\n',
    "task": '[project.entry-points."anchorfl.tasks"]\n$name = "$module.task:task"\n',
    "tracker": '[project.entry-points."anchorfl.trackers"]\n$name = "$module.tracker:$class_"\n',
}
TITLES = {
    "method": "$class_, a method for AnchorFL.",
    "network": "$class_, a network for AnchorFL.",
    "task": "$class_, a data set for AnchorFL.",
    "tracker": "$class_, a tracker for AnchorFL.",
}
MORE = {
    "method": "anchorfl sweep $name.toml --trials 10",
    "network": "anchorfl run digits/fedavg --model.network $name",
    "task": "anchorfl data $name\nanchorfl run digits/fedavg --task.name $name --task.classes_per_client 2",
    "tracker": "anchorfl run digits/fedalign --tracking.trackers $name,tensorboard",
}
WHAT = {
    "method": "The method is `src/$module/method.py`; AnchorFL's docs/adding-a-method.md says what each part is for.",
    "network": "The network is `src/$module/network.py`; AnchorFL's docs/plug-ins.md says what it gets and gives.",
    "task": "The data set is `src/$module/task.py`; AnchorFL's docs/adding-a-data-set.md says what each part is for.",
    "tracker": "The tracker is `src/$module/tracker.py`; AnchorFL's docs/plug-ins.md says when it is called with what.",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("kind", choices=list(FILES))
    parser.add_argument("name", metavar="NAME", help="its name, and its package's, such as fed-fancy")
    parser.add_argument("--out", type=Path, default=None, help="folder to make; default: NAME")


def new(options: argparse.Namespace) -> int:
    """Write a package, and say what to do with it."""
    folder: Path = options.out or Path(options.name)
    for path in write_package(options.kind, options.name, folder):
        say(str(path))
    say(f'next: cd {shlex.quote(str(folder))} && pip install -e ".[dev]" && pytest && anchorfl run {options.name}.toml')
    return 0


def write_package(kind: str, name: str, folder: Path) -> list[Path]:
    """Write the package of a method, network, task or tracker into a folder that is not there yet; return its files.

    Raises InputError where the name cannot be one, or is taken.
    """
    module = name.replace("-", "_").replace(".", "_").lower()
    class_name = "".join(part.capitalize() for part in module.split("_"))
    if not NAME.fullmatch(name) or not module.isidentifier() or {module, class_name} & {*keyword.kwlist}:
        raise InputError(f"{name!r} cannot name a package: write letters, digits and '-', a letter first, as fed-fancy")
    _check_free(kind, name, module)
    if folder.exists():
        raise InputError(f"{folder} is there already: name another folder with --out, or another NAME")
    here = version("anchorfl").split(".")
    values = {
        "name": name,
        "module": module,
        "class_": class_name,
        "version": ".".join(here[:2]),
        "next": f"{here[0]}.{int(here[1]) + 1}",
    }
    values |= {
        key: Template(text[kind]).substitute(values)
        for key, text in {"entry_points": ENTRY_POINTS, "title": TITLES, "more": MORE, "what": WHAT}.items()
    }
    files = {"pyproject.toml": PYPROJECT, "README.md": README, f"src/{module}/__init__.py": '"""$title"""\n'}
    written = []
    for path, text in (files | dict(FILES[kind])).items():
        target = folder / Template(path).substitute(values)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, Template(text).substitute(values).encode())
        written.append(target)
    return written


def _check_free(kind: str, name: str, module: str) -> None:
    """Raise InputError where AnchorFL, a plug-in or Python has something of that name."""
    if kind == "method":
        from anchorfl.pipeline.methods import method_names

        names = method_names()
    elif kind == "network":
        names = [*NETWORKS, *plugin_names(plugins.NETWORK)]
    elif kind == "tracker":
        names = [*HOME, *plugin_names(plugins.TRACKER)]
    else:
        from anchorfl.tasks.registry import task_names

        names = task_names()
    if name in names:
        raise InputError(f"there is a {kind} {name!r} already: give it another name")
    if find_spec(module) is not None:
        raise InputError(f"Python has a module {module!r} already, which would hide this one: give it another name")
