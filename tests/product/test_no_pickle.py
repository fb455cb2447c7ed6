"""No code from files, in the source: nowhere is a file unpickled, a text evaluated or a shell started."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("models", "tasks", "pipeline", "tuning")
MODULES = {"pickle", "cloudpickle", "dill", "joblib", "jsonpickle", "marshal", "shelve", "code", "codeop", "imp"}
"""Modules that make objects, and so run code, out of bytes, or code out of texts."""
BUILTINS = {"eval", "exec", "compile", "__import__"}
CALLS = {
    "torch.load", "torch.jit.load", "torch.hub.load", "torch.package", "torch.save", "yaml.load", "yaml.full_load",
    "yaml.unsafe_load", "yaml.load_all", "os.system", "os.popen", "read_pickle", "to_pickle", "Word2Vec.load",
    "KeyedVectors.load", "unpack_archive", "extractall", "mlflow.pyfunc.load_model",
}  # fmt: skip
"""Calls by the end of their dotted name; no archive is unpacked as a whole, which could write anywhere."""
WORDS = {"allow_pickle": False, "shell": False, "trust_remote_code": False, "weights_only": True, "verify": True}
"""Keyword arguments that must have this value, written out, where they are given."""
ALLOWED = {
    (
        "pipeline/execution/forked_executor.py",
        "cloudpickle",
    ): "what the driver writes for the workers that it starts",
    (
        "pipeline/execution/fresh_process.py",
        "pickle",
    ): "bytes of a pipe between this process and the child that it has just started",
    (
        "pipeline/execution/worker.py",
        "pickle",
    ): "what the driver that started the worker wrote, in memory without a name that no other process can open",
    (
        "tuning/clusters/check.py",
        "yaml.load",
    ): "with a loader that inherits from SafeLoader, to refuse a key that stands twice",
}


def dotted(node: ast.expr) -> str:
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute():
            return f"{dotted(node.value)}.{node.attr}"
    return ""


def dangers(source: str) -> list[tuple[str, int]]:
    """(what, line) of all that runs, or could run, code that comes from elsewhere."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import():
                found += [(a.name, node.lineno) for a in node.names if set(a.name.split(".")) & MODULES]
            case ast.ImportFrom(module=module, names=names):
                words = {*str(module).split("."), *(a.name for a in names)}
                safe = str(module).startswith("safetensors")  # safetensors.torch, whose load reads no pickle
                whole = {f"{str(module).rpartition('.')[2]}.{a.name}" for a in names if not safe}
                found += [(name, node.lineno) for name in (words & MODULES) | (whole & CALLS)]
            case ast.Call():
                name = dotted(node.func)
                if name in BUILTINS or any(f".{name}".endswith(f".{call}") for call in CALLS):
                    found.append((name, node.lineno))
                given = {k.arg: k.value for k in node.keywords}
                for word, value in WORDS.items():
                    right = word not in given or ast.dump(given[word]) == ast.dump(ast.Constant(value))
                    if not right or (word == "allow_pickle" and name == "np.load" and word not in given):
                        found.append((word, node.lineno))
    return found


def test_the_walk_sees_what_it_looks_for():
    for line in (
        "import pickle", "from ray import cloudpickle", "import ray.cloudpickle", "from joblib import load",
        "import torch\nx = torch.load(f)", "from torch import load", "import numpy as np\nnp.load(f)",
        "np.load(f, allow_pickle=True)", "np.load(f, allow_pickle=flag)", "yaml.load(t)", "yaml.unsafe_load(t)",
        "eval(t)", "exec(t)", "subprocess.run(t, shell=True)", "os.system(t)", "pd.read_pickle(f)",
        "AutoModel.from_pretrained(n, trust_remote_code=True)", "archive.extractall()", "import marshal, shelve",
        "requests.get(u, verify=False)", "import importlib\nimportlib.__import__(n)\n__import__(n)",
    ):  # fmt: skip
        assert dangers(line), line
    for line in ("np.load(f, allow_pickle=False)", "json.loads(t)", "yaml.safe_load(t)", "model.eval()", "load(data)",
                 "from safetensors.torch import load"):  # fmt: skip
        assert not dangers(line), line


def test_no_source_file_runs_what_it_reads():
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    assert len(files) > 150
    found = Counter(
        (path.relative_to(ROOT).as_posix(), what) for path in files for what, _ in dangers(path.read_text("utf-8"))
    )
    assert set(found) == set(ALLOWED), "either a new danger, or an allowance that nothing needs any more"
    assert all(count == 1 for count in found.values()), found
