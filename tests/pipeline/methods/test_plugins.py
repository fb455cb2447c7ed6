"""Methods, tasks and search spaces of other packages: found, refused in one line, recorded, run, and gone on with."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from dataclasses import dataclass, replace

import pytest

import anchorfl
from anchorfl.pipeline.algorithm.contract import AveragingTrainer
from anchorfl.pipeline.config.experiment import digest, to_tree
from anchorfl.pipeline.config.schema import from_tree, with_options
from anchorfl.pipeline.methods import find_method, method_names
from anchorfl.pipeline.methods.fedavg import FedAvg
from anchorfl.pipeline.run.assemble import from_values
from anchorfl.pipeline.run.lifecycle import resume, run
from anchorfl.pipeline.storage.run_record import read_metadata
from anchorfl.pipeline.training.errors import QuorumError
from anchorfl.tasks import plugins
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.registry import find_task, task_names
from anchorfl.testing import small_experiment, stopped_before
from anchorfl.tuning.cli import main
from anchorfl.tuning.search.options import SweepOptions
from anchorfl.tuning.search.search_space import Range, space_of
from anchorfl.tuning.sweep.plan import SweepPlan, resumed_plan
from tests.runs import SMALL, quiet

METHOD = '''
from __future__ import annotations
from dataclasses import dataclass
from anchorfl.pipeline.algorithm.contract import Averaging

@dataclass(frozen=True, kw_only=True)
class Fancy(Averaging):
    """Plain averaging under another name."""
    name = "fancy"
    strength: float = 0.5
    """Of nothing."""

    def __post_init__(self) -> None:
        if self.strength < 0:
            raise ValueError(f"method.strength = {self.strength}: must be at least 0")
'''
BARE = METHOD.replace("Averaging)", "Method)").replace("import Averaging", "import Method")
SPACE = """
from anchorfl.tuning.search.search_space import MethodSpace, Range
SPACE = MethodSpace({"strength": Range(0, 1, reason="any")}, warm_up=2)
WRONG = MethodSpace({"strngth": Range(0, 1)})
"""
TASK = """
from dataclasses import replace
from anchorfl.tasks.toy.single import toy_single

def task():
    return replace(toy_single(), name="gestures")

def same_name():
    return toy_single()

def no_task():
    return 7

def fails():
    raise RuntimeError("no disk")
"""


def look_at_the_environment_again():
    plugins._offers.cache_clear()
    plugins._packages.cache_clear()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return a maker of packages as pip would install them: modules, entry points, and what they need."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    before = set(sys.modules)

    def make(name="fancy-fl", modules=None, entry_points="", needs=""):
        for module, text in (modules or {}).items():
            (folder / f"{module}.py").write_text(text)
        info = folder / f"{name.replace('-', '_')}-0.3.dist-info"
        info.mkdir()
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.3\n"
        (info / "METADATA").write_text(metadata + (f"Requires-Dist: {needs}\n" if needs else ""))
        (info / "entry_points.txt").write_text(entry_points)
        (info / "top_level.txt").write_text("\n".join(modules or {}))
        look_at_the_environment_again()

    look_at_the_environment_again()
    yield make
    look_at_the_environment_again()
    for module in set(sys.modules) - before:
        if getattr(sys.modules[module], "__file__", None) and str(folder) in str(sys.modules[module].__file__):
            del sys.modules[module]


@pytest.fixture
def fancy(package):
    """A package with a method, its search space and a task."""
    package(
        modules={"fancy_fl": METHOD, "fancy_space": SPACE, "fancy_task": TASK},
        entry_points="[anchorfl.methods]\nfancy = fancy_fl:Fancy\n[anchorfl.search_spaces]\nfancy = fancy_space:SPACE\n"
        "[anchorfl.tasks]\ngestures = fancy_task:task\nbroken = fancy_task:fails\n",
    )


def said(name: str) -> str:
    with pytest.raises(InputError) as caught:
        find_method(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.usefixtures("fancy")
def test_a_method_has_one_name_whichever_way_it_is_asked_for():
    for name in ("fancy", "fancy_fl:Fancy"):
        e = from_values("digits/fedavg", {"method.name": name, "method.strength": 0.25}).experiment
        assert (type(e.method).__module__, e.method.strength) == ("fancy_fl", 0.25)
        assert to_tree(e)["method"]["name"] == "fancy"
        assert from_tree(to_tree(e)) == e
    assert "fancy" in method_names()
    with pytest.raises(InputError, match=r"method.strength = -1"):
        from_values("digits/fedavg", {"method.name": "fancy", "method.strength": -1.0})
    with pytest.raises(InputError, match=r"no option 'strngth' in \[method\] \(did you mean 'strength'"):
        from_tree(to_tree(e) | {"method": {"name": "fancy", "strngth": 1.0}})


def test_a_module_of_the_current_folder_is_found_last(tmp_path, monkeypatch, capsys):
    """No entry point and no package: train, look at the records, go on after an interruption."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "only_here.py").write_text(METHOD)
    (tmp_path / "json.py").write_text("raise RuntimeError('the library is found first')")
    words = ["run", "digits/fedavg", "--method.name", "only_here:Fancy", *SMALL, "--output", "out"]
    assert main([*words, "--method.strength", "0.125"]) == 0
    capsys.readouterr()
    config, tags = json.loads((tmp_path / "out" / "config.json").read_text()), read_metadata(tmp_path / "out")["tags"]
    assert config["method"] == {"name": "only_here:Fancy", "weighting": "samples", "strength": 0.125}
    assert tags["method"] == "fancy"
    assert tags["method_plugin"].startswith("only_here:Fancy, sha256 ")
    assert sys.path[-1] == str(tmp_path)
    (tmp_path / "out" / "result.json").unlink()
    assert main(["resume", "out"]) == 0
    del sys.modules["only_here"]


def test_it_gives_the_bits_of_what_it_is(fancy, tmp_path):
    runs = [run(small_experiment(name), tmp_path / name, quiet) for name in ("fancy", "fedavg")]
    assert runs[0].checksum == runs[1].checksum
    assert "fancy-fl==0.3" in read_metadata(tmp_path / "fancy")["tags"]["method_plugin"]
    assert "method_plugin" not in read_metadata(tmp_path / "fedavg")["tags"]


class SilentTrainer(AveragingTrainer):
    """A client half whose update has no ``return``."""

    def update(self):
        pass


@pytest.mark.parametrize("hook", ["begin", "broadcast", "merge", "aggregate", "trainer", "update"])
def test_a_hook_that_gives_nothing_is_named(tmp_path, hook):
    """What is most often forgotten is a ``return``."""
    half = {"update": {"trainer": lambda self, ctx: SilentTrainer(ctx)}, "aggregate": {"sums": False}}
    code = half.get(hook, {}) | ({hook: lambda *args: None} if hook != "update" else {})
    silent = dataclass(frozen=True, kw_only=True)(type("Silent", (FedAvg,), {"name": "silent", **code}))
    owner = "SilentTrainer" if hook == "update" else "Silent"
    with pytest.raises((InputError, QuorumError), match=rf"{hook}\(\) of {owner} gives a NoneType, and has to give a "):
        run(small_experiment(silent()), tmp_path / "run", quiet)


def test_a_sweep_does_not_go_on_with_other_code(fancy, tmp_path):
    """Its ranking would be of two methods."""
    options, space = SweepOptions(trials=2), {"strength": Range(0, 1)}
    SweepPlan("p", small_experiment("fancy"), space, options, "").save(tmp_path)
    source = tmp_path / "site" / "fancy_fl.py"
    source.write_text(METHOD + "# another\n")
    importlib.reload(sys.modules["fancy_fl"])
    with pytest.raises(InputError, match=r"sweep.json: the source or files of its method were edited since it began"):
        resumed_plan(tmp_path, {}, {"method.name": "fancy"})
    source.write_text(METHOD)
    importlib.reload(sys.modules["fancy_fl"])
    assert resumed_plan(tmp_path, {}, {"method.name": "fancy"}).experiment.method.name == "fancy"


@pytest.mark.parametrize("name", ["head", "averaged", "notice", "revision"])
def test_an_option_is_no_part_of_every_method(tmp_path, monkeypatch, name):
    monkeypatch.syspath_prepend(tmp_path)
    kept = METHOD.replace("    strength: float = 0.5", f"    {name}: int = 2\n    strength: float = 0.5")
    (tmp_path / f"with_{name}.py").write_text(kept)
    with pytest.raises(InputError, match=rf"Fancy.{name} is part of every method, and no option"):
        find_method(f"with_{name}:Fancy")


@pytest.mark.parametrize("default", ["float = None", "int = 0.5", 'bool = "yes"'])
def test_a_default_of_another_type_is_refused_before_it_trains(tmp_path, monkeypatch, default):
    """The run could not be read again."""
    monkeypatch.syspath_prepend(tmp_path)
    name = f"default_{default[:3]}"
    (tmp_path / f"{name}.py").write_text(METHOD.replace("    strength", f"    rate: {default}\n    strength"))
    with pytest.raises(InputError, match=r"Fancy.rate = .* is not of its type \("):
        find_method(f"{name}:Fancy")


def test_its_source_is_part_of_the_digest(fancy, tmp_path):
    """Who edits a method has another experiment: a run that began before does not go on with the other code."""
    e = small_experiment("fancy")
    with stopped_before(2):
        run(e, tmp_path / "run", quiet)
    before, source = digest(e), tmp_path / "site" / "fancy_fl.py"
    source.write_text(METHOD + "# another\n")
    assert digest(e) == before, "of the code that runs, whatever lies on the disk"
    with pytest.raises(InputError, match="fancy_fl was edited after this Python had imported it, and Fancy is as it"):
        run(e, tmp_path / "other", quiet)
    importlib.reload(sys.modules["fancy_fl"])
    with pytest.raises(InputError, match="and Fancy is as it was"):
        run(e, tmp_path / "other", quiet)  # its class is of before
    assert digest(small_experiment("fancy")) != before
    with pytest.raises(InputError, match="the source or files of its method were edited since it began: put them"):
        resume(tmp_path / "run", quiet)
    source.write_text(METHOD)
    importlib.reload(sys.modules["fancy_fl"])
    assert digest(small_experiment("fancy")) == before
    assert resume(tmp_path / "run", quiet).checksum


def test_a_module_that_is_edited_while_it_trains_costs_nothing(fancy, tmp_path):
    """The run is of the code that had been imported."""
    e, source = small_experiment("fancy"), tmp_path / "site" / "fancy_fl.py"

    def edit(report):
        source.write_text(METHOD + f"# {report.round}\n")

    assert run(e, tmp_path / "run", quiet, callbacks=[edit]).checksum
    assert read_metadata(tmp_path / "run")["status"] == "FINISHED"


SCRIPT = """
from dataclasses import dataclass
from anchorfl.pipeline.algorithm.contract import Averaging, AveragingTrainer
from anchorfl.pipeline.config.experiment import digest
from anchorfl.testing import small_experiment

from collections import namedtuple
from functools import cache

FACTOR, seed = 2.0, 1
WIDTHS = (3, 4)
Pair = namedtuple("Pair", "a b")

@cache
def table():
    return Pair(*WIDTHS)

def scaled(loss):
    return loss * FACTOR * table().a

class Trainer(AveragingTrainer):
    def loss(self, batch):
        return scaled(super().loss(batch))

@dataclass(frozen=True, kw_only=True)
class Typed(Averaging):
    name = "typed"
    def trainer(self, ctx):
        return Trainer(ctx)

if __name__ == "__main__":
    print(digest(small_experiment(Typed())))
"""


def test_all_that_a_script_s_method_names_is_part_of_the_digest(tmp_path):
    """Its class alone was: a run went on with another trainer."""
    script = tmp_path / "script.py"

    def digest_of(text):
        script.write_text(text)
        done = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True)
        return done.stdout

    first = digest_of(SCRIPT)
    assert digest_of(SCRIPT.replace("seed = 2.0, 1", "seed = 2.0, 3")) == first  # which it does not name
    for changed in (
        ("return loss * FACTOR", "return loss + FACTOR"),
        ("FACTOR, seed = 2.0", "FACTOR, seed = 3.0"),
        ("WIDTHS = (3, 4)", "WIDTHS = (3, 5)"),
        ("return Pair(*WIDTHS)", "return Pair(*WIDTHS) or 0"),
        ("super()", "1 * super()"),
    ):
        assert digest_of(SCRIPT.replace(*changed)) != first


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('    evaluate_on = "client"', "evaluate_on = 'client': one of server, clients"),
        ('    supports = Supports(kinds=("one",))', "supports.kinds has 'one': there are single, multi"),
        ('    supports = Supports(robust=("krun",))', "supports.robust has 'krun': there are median"),
    ],
)
def test_a_misspelt_part_of_a_method_is_one_line(package, text, line):
    """A run ended without a model, or was refused for a kind of task that there is not."""
    source = METHOD.replace("import Averaging", "import Averaging, Supports").replace(
        '    name = "fancy"', f'    name = "fancy"\n{text}'
    )
    package(modules={"misspelt": source})
    with pytest.raises(InputError, match=re.escape(line)):
        find_method("misspelt:Fancy")


@pytest.mark.parametrize("value", [3, "1", True, 1.0])
def test_a_choice_of_numbers_is_refused_in_one_line(package, value):
    source = METHOD.replace("import dataclass", "import dataclass\nfrom typing import Literal")
    package(modules={"choice": source.replace("strength: float = 0.5", "strength: Literal[1, 2] = 1")})
    e = small_experiment("choice:Fancy")
    assert with_options(e, {"method.strength": 2}).method.strength == 2
    with pytest.raises(InputError, match=rf"method\.strength = {value!r}.*: one of 1, 2$"):
        with_options(e, {"method.strength": value})


def test_a_field_that_is_no_option_is_in_no_preset(package, tmp_path):
    """A finished run of it could not be read."""
    source = (
        METHOD.replace("import dataclass", "import dataclass, field").replace(
            "    strength: float = 0.5", "    strength: float = 0.5\n    half: float = field(init=False)"
        )
        + "        object.__setattr__(self, 'half', self.strength / 2)\n"
    )
    package(modules={"derived": source})
    e = small_experiment("derived:Fancy")
    assert from_tree(to_tree(e)) == e
    assert e.method.half == 0.25
    assert run(e, tmp_path / "run", quiet).checksum == resume(tmp_path / "run", quiet).checksum


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "m has no 'Fancy'"),
        ("Fancy = 3", "a int is no method"),
        ("class Fancy: pass", "the class Fancy is no method: it has to inherit from anchorfl.Method"),
        ("import no_such_library", "m needs 'no_such_library', which is not installed"),
        ("x = 1 / 0", "m.py, line 1): ZeroDivisionError: division by zero"),
        ("def f(:\n  pass", "m.py, line 1): SyntaxError"),
        ("import sys; sys.exit(3)", "m.py, line 1): SystemExit: 3"),
        ("import json\njson.loads('')", "m.py, line 2): JSONDecodeError: Expecting value"),
        (METHOD.replace("@dataclass(frozen=True, kw_only=True)\n", ""), "needs @dataclass(frozen=True"),
        (BARE.replace("frozen=True, ", ""),
         "needs @dataclass(frozen=True"),
        (BARE, "lacks begin, contribution"),
        (METHOD.replace('name = "fancy"', ""), "has no name"),
        (METHOD.replace('"fancy"', '"a b"'), "has no name"),
        (METHOD.replace('"fancy"', '"moon"'), "calls itself 'moon', as a method of AnchorFL"),
        (METHOD.replace('name = "fancy"', 'name: str = "fancy"'), "Fancy.name is no option: write it without a type"),
        (METHOD.replace("strength: float", "strength"), "Fancy.strength has no type, so it is no option: write"),
        (METHOD.replace("strength: float = 0.5", 'kinds = ("single",)'),
         "Fancy.kinds is part of supports: write supports = Supports(kinds=('single',))"),
        (METHOD.replace("strength: float = 0.5", "one_class = True"), "write supports = Supports(one_class=True)"),
        (METHOD.replace("strength: float = 0.5", "layers: tuple[int, ...] = ()"), "Fancy.layers is of the type tuple"),
        (METHOD + "\nFancy = dataclass(frozen=True, kw_only=True)(type('Third', (Fancy,), {'__module__': 'm'}))",
         "records call this class m:Third, and Python does not find it by that name"),
        (METHOD + "\nFancy.__module__ = 'gone'", "records call this class gone:Fancy, and Python does not find it"),
        (METHOD.replace("@data", "def f():\n  return 1\n@data") + "Fancy.__qualname__ = 'f.<locals>.Fancy'",
         "records call this class m:f.<locals>.Fancy, and Python does not find it"),
        (METHOD.replace("strength: float", "strength: Floot"), "one of its types cannot be read (NameError"),
    ],
    ids=lambda text: text[:40] if "\n" not in text else "",
)  # fmt: skip
def test_what_is_no_method_is_one_line(package, text, line):
    package(modules={"m": text})
    assert line in said("m:Fancy")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("nowhere:Fancy", "Python finds no module 'nowhere': install its package, on a running cluster on every"),
        ("os.nothing:Fancy", "Python finds no module 'os.nothing'"),
        ("os:system", "a builtin_function_or_method is no method"),
        ("os:", "write package.module:Name"),
        ("os:path:join", "write package.module:Name"),
        ("../evil:Fancy", "write package.module:Name"),
        ("__main__:Fancy", "a script's own objects are gone with it"),
        ("fedavgg", "no method 'fedavgg' in [method] name (did you mean 'fedavg'?)"),
    ],
)
def test_a_name_that_is_none_is_one_line(name, line):
    assert line in said(name)


def test_a_name_that_is_taken_is_refused(package):
    package(
        modules={"m": METHOD}, entry_points="[anchorfl.methods]\nfedavg = m:Fancy\nother = m:Fancy\nfancy = m:Fancy\n"
    )
    assert "AnchorFL and fancy-fl (as m:Fancy) have a method of that name" in said("fedavg")
    assert "its class calls itself 'fancy': its entry point needs that name" in said("other")
    assert find_method("fancy").name == "fancy"
    package("rival", modules={"n": METHOD}, entry_points="[anchorfl.methods]\nfancy = n:Fancy\n")
    assert "fancy-fl (as m:Fancy) and rival (as n:Fancy)" in said("fancy").replace("rival (as n:Fancy) and fancy-fl"
        " (as m:Fancy)", "fancy-fl (as m:Fancy) and rival (as n:Fancy)")  # fmt: skip
    assert find_method("m:Fancy").name == "fancy"


@pytest.mark.parametrize(
    ("needs", "fits"), [("anchorfl>=0.1", True), ("anchorfl>=9,<10", False), ("anchorfl<9; extra == 'x'", True)]
)
def test_a_plugin_for_another_version_is_refused(package, needs, fits):
    package(modules={"m": METHOD}, entry_points="[anchorfl.methods]\nfancy = m:Fancy\n", needs=needs)
    if fits:
        assert find_method("fancy").name == "fancy"
    else:
        assert "'fancy': fancy-fl 0.3 wants anchorfl<10,>=9, and this is" in said("fancy")


def test_a_folder_of_others_imports_nothing(tmp_path, monkeypatch, capsys):
    """Its options name a module; reading them would run it. Whoever looked at it types the name again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "theirs.py").write_text(METHOD + "from pathlib import Path\nPath('ran').touch()\n")
    assert main(["run", "digits/fedavg", "--method.name", "theirs:Fancy", *SMALL, "--output", "out"]) == 0
    del sys.modules["theirs"]
    (tmp_path / "ran").unlink()
    (tmp_path / "out" / "result.json").unlink()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    for command in ("resume", "diagnose", "report"):
        capsys.readouterr()
        assert main([command, "out"]) == 2
        err = capsys.readouterr().err
        assert "was not written by you on this machine, and names method.name = 'theirs:Fancy'" in err
    assert main(["sync", "out"]) == 0
    assert main(["compare", "out"]) == 0
    assert not (tmp_path / "ran").exists()
    assert main(["resume", "out", "--method.name", "os:system"]) == 2
    assert "names method.name" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
    with pytest.raises(InputError, match="was not written by you"):
        anchorfl.Run("out")
    assert main(["report", "out", "--method.name", "theirs:Fancy"]) == 0
    assert anchorfl.Run("out", places={"method.name": "theirs:Fancy"}).experiment.method.name == "fancy"
    assert (tmp_path / "ran").exists()
    assert main(["resume", "out", "--method.name", "theirs:Fancy"]) == 0
    del sys.modules["theirs"]


def test_its_package_offers_a_search_space(fancy):
    e = from_values("digits/fedavg", {"method.name": "fancy"}).experiment
    assert list(space_of(e)) == ["strength"]
    assert list(space_of(e, ["fancy_space:SPACE", "optimizer.lr=0.1,0.2"])) == ["strength", "optimizer.lr"]
    with pytest.raises(InputError, match=r"--space strngth: no such option \(did you mean 'strength'"):
        space_of(e, ["fancy_space:WRONG"])
    with pytest.raises(InputError, match=r"a type, and no MethodSpace"):
        space_of(e, ["fancy_space:MethodSpace"])
    with pytest.raises(InputError, match="declares no search space"):
        space_of(replace(e, method=Unoffered()))


class Unoffered(find_method("fedavg")):
    name = "unoffered"


def test_a_task_is_found_and_its_faults_are_one_line(fancy, tmp_path, capsys):
    assert {"gestures", "broken"} <= set(task_names())
    assert find_task("gestures").name == find_task("fancy_task:task").name == "gestures"
    for name, line in {
        "fancy_task:no_task": "returns a int, and no anchorfl.Task",
        "fancy_task:same_name": "it calls itself 'toy-single', and AnchorFL has a task of that name",
        "fancy_task:fails": "it failed (RuntimeError: no disk)",
        "fancy_task:nothing": "fancy_task has no 'nothing'",
        "fancy_task:replace": "it failed (TypeError: ",
        "digitz": "no task 'digitz' in [task] name (did you mean 'digits'?)",
    }.items():
        with pytest.raises(InputError) as caught:
            find_task(name)
        assert line in str(caught.value)
    result = run(small_experiment("fedavg", "fancy_task:task"), tmp_path / "run", quiet)
    again = run(small_experiment("fedavg", "toy-single"), tmp_path / "toy", quiet)
    assert result.checksum == again.checksum
    texts = ["apple juice tree"]
    model = anchorfl.load_model(tmp_path / "run")
    assert model.packages == ("fancy-fl==0.3",)
    assert model.predict(texts).equals(anchorfl.load_model(tmp_path / "toy").predict(texts))
    tags = read_metadata(tmp_path / "run")
    assert tags["experiment"] == "gestures"
    assert tags["tags"]["task_plugin"].startswith("fancy_task:task of fancy-fl==0.3, sha256 ")
    assert main(["data", "gestures"]) == 0
    assert "gestures            bundled" in capsys.readouterr().out
    assert main(["data"]) == 0
    assert "it failed (RuntimeError: no disk)" in " ".join(capsys.readouterr().out.split())
    assert main(["data", "broken"]) == 2
