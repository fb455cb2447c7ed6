"""Presets and command-line overrides."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from anchorfl.pipeline.config.federations import Catalog
from anchorfl.pipeline.config.overrides import override
from anchorfl.pipeline.config.presets import PRESETS, read_preset, shipped_toml
from tests.fuzz.mutations import TOKENS, VALUES
from tests.fuzz.parsers import Parser
from tests.fuzz.promise import QUICK, keep

SHIPPED = ("digits/fedalign", "r8-8/fedalign", "voc07/fedalc")


def write(folder):
    for name in SHIPPED:
        (folder / f"{name.replace('/', '-')}.toml").write_text(shipped_toml(name))
    (folder / "own.toml").write_text('extends = "digits-fedalign.toml"\n[method]\nq1 = 90\n')


def read(folder, made):
    for path in sorted(folder.glob("*.toml")):
        read_preset(str(path))


def write_parts(folder):
    for name in ("r8-8", "fedalign"):
        text = (PRESETS / f"{name}.toml").read_text()
        others = ("ES-", '"ES-', "MIMIC", "PAMAP", "data = ")
        lines = [line for line in text.splitlines() if not line.startswith(others)]
        (folder / f"{name}.toml").write_text("\n".join(lines) + "\n")


def read_parts(folder, made):
    catalog = Catalog(folder)
    for name in catalog.presets:
        catalog.read(name)


PARSERS = [Parser("preset", write, read), Parser("preset", write_parts, read_parts)]


@QUICK
@given(data=st.data())
def test_a_changed_preset_federation_or_paper_is_read_or_refused(bench, data):
    bench.check_changed(data.draw(bench.case()))


SECTIONS = ("task", "method", "model", "federation", "optimizer", "evaluation", "cluster", "tracking")
KEYS = ("name", "clients", "lr", "rounds", "quorum", "partition", "q1", "width", "weights", "parquet", "cache", "uri")
LITERALS = st.one_of(
    st.sampled_from(("0", "-1", "1e400", "nan", "inf", "-inf", "true", '""', '"x"', "[]", "[[[]]]", "{a = {b = {}}}")),
    st.sampled_from(("1979-05-27T07:32:00Z", "07:32:00", "0x" + "f" * 400, "9" * 400, "9" * 5000, '"\\u0000"')),
    st.integers().map(str),
    st.floats().map(repr),
    st.text(max_size=9).map(lambda text: '"' + text.replace("\\", "").replace('"', "") + '"'),
)


@QUICK
@given(
    st.lists(st.tuples(st.sampled_from(SECTIONS), st.sampled_from(KEYS), LITERALS), max_size=5),
    st.sampled_from(("", "seed = 1\n", 'extends = "digits/fedalign"\n', "seed = 9e99\n", "output = 5\n")),
)
@example([("method", "name", "[]")], "")
@example([("method", "name", "{a = 1}")], 'extends = "digits/fedalign"\n')
@example([("task", "name", "nan")], 'extends = "digits/fedalign"\n')
@example([("optimizer", "lr", "9" * 400)], 'extends = "digits/fedalign"\n')
@example([("optimizer", "lr", "9" * 5000)], 'extends = "digits/fedalign"\n')
@example([], 'extends = "a\\u0000b"\n')
@example([], f'extends = "{"a/" * 3000}"\n')
@example([], "a = " + "[" * 100_000)
@example([], "a = " + "{b = " * 100_000)
@example([], "a." * 100_000 + "b = 1\n")
@example([], "[" + "a." * 50_000 + "b]\n")
def test_generated_presets(tmp_path_factory, options, head):
    path = tmp_path_factory.getbasetemp() / "made.toml"
    tables = {}
    for section, key, literal in options:
        tables.setdefault(section, {})[key] = literal
    body = "\n".join(f"[{s}]\n" + "\n".join(f"{k} = {v}" for k, v in t.items()) for s, t in tables.items())
    path.write_bytes((head + body).encode("utf-8", "surrogatepass"))
    keep("preset", lambda: read_preset(str(path)), names=("made.toml",))


def test_presets_that_extend_each_other(tmp_path):
    (tmp_path / "a.toml").write_text('extends = "b.toml"\n')
    (tmp_path / "b.toml").write_text('extends = "a.toml"\n')
    assert "extends itself" in keep("preset", lambda: read_preset(str(tmp_path / "a.toml")))
    count = 3000
    for n in range(count):
        (tmp_path / f"p{n}.toml").write_text(f'extends = "p{n + 1}.toml"\n')
    (tmp_path / f"p{count}.toml").write_text('extends = "digits/fedalign"\n')
    assert "extend" in keep("preset", lambda: read_preset(str(tmp_path / "p0.toml")))


NAMES = (*(f"{s}.{k}" for s in SECTIONS for k in KEYS), "seed", "output", "", ".", "method", "help", "task.")


@QUICK
@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(NAMES).map("--{}".format), st.sampled_from(TOKENS)),
            st.tuples(st.sampled_from(NAMES).map("--{}".format), st.sampled_from(VALUES).map(str)),
            st.tuples(st.sampled_from(NAMES).map("--{}=x".format)),
            st.tuples(st.text(max_size=5)),
        ),
        max_size=4,
    )
)
@example([("--optimizer.lr", "nan")])
@example([("--seed", "9" * 5000)])
@example([("--task.name", "\ud800")])
@example([("--task.clients", "1_0")])
def test_overrides(pairs):
    arguments = [word for pair in pairs for word in pair if word not in ("--help", "-h")]
    keep("override", lambda: override(read_preset("digits/fedalign"), arguments))
