"""Plug-ins: methods, networks, text encoders, tasks, trackers and search spaces of other packages, by entry point or
module and name.

    --method.name fancy                 # a package of the environment offers it:
                                        #   [project.entry-points."anchorfl.methods"]
                                        #   fancy = "fancy_fl.method:Fancy"
    --method.name fancy_fl.method:Fancy # any module that Python finds, or that lies in the current folder

The code of a plug-in is imported when its name is asked for, and not before (docs/plug-ins.md).
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
import symtable
import sys
import textwrap
import traceback
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from anchorfl.tasks.errors import InputError, first_line, nearest

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""Names of methods and tasks: they become names of folders and records."""


@dataclass(frozen=True, slots=True)
class PluginKind:
    """What plug-ins can add: a method, a task, a network, a text encoder, a tracker, a search space."""

    word: str
    """Its word in messages: ``method``."""
    group: str
    """Group of its entry points: ``anchorfl.methods``."""


@dataclass(frozen=True, slots=True)
class LibraryCode:
    """Code of an installed library that stands in a plug-in's place: known by its version, and not by its source."""

    name: str
    """As the option names it: ``timm:resnet18``."""
    package: str
    """Package and version: ``timm==1.0``."""
    files: tuple[Path, ...] = ()
    """Files that it is made from, whose content counts."""

    def digest(self) -> str:
        """Return the SHA-256 of name, version and files."""
        contents = [_file_digest(path, path.stat().st_mtime_ns, path.stat().st_size) for path in self.files]
        return hashlib.sha256(repr((self.name, self.package, contents)).encode()).hexdigest()


METHOD = PluginKind("method", "anchorfl.methods")
TASK = PluginKind("task", "anchorfl.tasks")
NETWORK = PluginKind("network", "anchorfl.networks")
TRACKER = PluginKind("tracker", "anchorfl.trackers")
TEXT_ENCODER = PluginKind("text encoder", "anchorfl.text_encoders")
SEARCH_SPACE = PluginKind("search space", "anchorfl.search_spaces")
KINDS = METHOD, NETWORK, TEXT_ENCODER, TASK, TRACKER, SEARCH_SPACE


def names_code(name: str) -> bool:
    """Return whether a name is that of a module and an object in it, ``package.module:Name``."""
    return ":" in name


def plugin_names(kind: PluginKind) -> list[str]:
    """Return the names that installed packages offer."""
    return sorted(_offers(kind.group))


def plugins_offered(kind: PluginKind) -> list[str]:
    """Return a line for everything of a kind that installed packages offer: name, code, package and version."""
    offers = [entry for name in plugin_names(kind) for entry in _offers(kind.group)[name]]
    return [f"{kind.word} {entry.name}: {entry.value} of {_label(entry.dist) or _package(entry)}" for entry in offers]


def find_plugin(kind: PluginKind, name: str, where: str, taken: Collection[str] = ()) -> Any:
    """Return the object that a name stands for: of an entry point, or ``package.module:Name``.

    where: the option, for messages. taken: names of AnchorFL itself. Raises InputError where there is none, where
    several packages offer it, or where its code cannot be imported.
    """
    where = f"{where} = {name!r}"
    if names_code(name):
        return _imported(name, where)
    check_name_is_free(kind, name, where, taken)
    offers = _offers(kind.group).get(name, [])
    if not offers:
        known = [*taken, *plugin_names(kind)]
        raise InputError(
            f"no {kind.word} {name!r} in {where.partition(' = ')[0]}{nearest(name, known)}; there are:"
            f" {', '.join(known)}; or package.module:Name for one of your own"
        )
    (entry,) = offers
    _check_wanted_version(kind, entry)
    return _imported(entry.value, f"{where}, of {_package(entry)}")


def check_name_is_free(kind: PluginKind, name: str, where: str, taken: Collection[str]) -> None:
    """Raise InputError where more than one package, or one and AnchorFL, have something of a name."""
    offers = _offers(kind.group).get(name, [])
    if len(offers) + (name in taken) > 1:
        who = ["AnchorFL"] if name in taken else []
        who += [f"{_package(entry)} (as {entry.value})" for entry in offers]
        raise InputError(
            f"{where}: {' and '.join(who)} have a {kind.word} of that name: name the one you want by its module, or"
            f" uninstall {' or '.join(map(_package, offers))}"
        )


@cache
def _offers(group: str) -> Mapping[str, list[EntryPoint]]:
    """Return the entry points of a group by name. An environment is looked at once in a process."""
    out = dict[str, list[EntryPoint]]()
    for entry in entry_points(group=group):
        same = out.setdefault(entry.name, [])
        if all((e.value, _package(e)) != (entry.value, _package(entry)) for e in same):  # seen twice on sys.path
            same.append(entry)
    return out


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else "an unknown package"


def _check_wanted_version(kind: PluginKind, entry: EntryPoint) -> None:
    """Raise InputError where a plug-in's package asks for another version of AnchorFL."""
    from packaging.requirements import Requirement

    for text in (entry.dist.requires if entry.dist else None) or ():
        wanted = Requirement(text)
        if wanted.name.lower() == "anchorfl" and not (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            here = version("anchorfl")
            if not wanted.specifier.contains(here, prereleases=True):
                raise InputError(
                    f"{kind.word} {entry.name!r}: {_label(entry.dist)} wants anchorfl{wanted.specifier}, and this is"
                    f" {here}: install versions of the two that fit"
                )


def _label(distribution: Distribution | None) -> str:
    return f"{distribution.name} {distribution.version}" if distribution else ""


def _imported(target: str, where: str) -> Any:
    """Return the object of ``package.module:Name``. InputError where there is none, or its module fails."""
    module_name, _, path = target.partition(":")
    parts = (*module_name.split("."), *path.split("."))
    if not all(part.isidentifier() for part in parts):
        raise InputError(f"{where}: write package.module:Name, a module that Python can import and an object in it")
    _look_in_current_folder(parts[0])
    try:
        found: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise InputError(
                f"{where}: Python finds no module {error.name!r}: install its package, on a running cluster on every"
                f" node, or start where {parts[0]}.py or the folder {parts[0]} lies (now {os.getcwd()})"
            ) from error
        raise InputError(f"{where}: {module_name} needs {error.name!r}, which is not installed") from error
    except (Exception, SystemExit) as error:
        place = _place(error, parts[0])
        raise InputError(f"{where}: importing {module_name} failed{place}: {first_line(error)}") from error
    if getattr(found, "__file__", None):
        _remembered(found)
    for part in path.split("."):
        if not hasattr(found, part):
            names = [name for name in dir(found) if not name.startswith("_")]
            hint = "; a script's own objects are gone with it: put them into a module" if parts[0] == "__main__" else ""
            raise InputError(f"{where}: {module_name} has no {part!r}{nearest(part, names)}{hint}")
        found = getattr(found, part)
    return found


def _look_in_current_folder(top: str) -> None:
    """Let Python find a module that lies in the current folder. It comes last, so that it hides nothing."""
    here = os.getcwd()
    if top in sys.modules or here in sys.path:
        return
    try:
        missing = find_spec(top) is None
    except (ImportError, ValueError):
        missing = False
    if missing and ((Path(here) / f"{top}.py").is_file() or (Path(here) / top).is_dir()):
        sys.path.append(here)


def _place(error: BaseException, package: str) -> str:
    """Return the last file and line of ``package``, else of any, where an import failed; empty where none is known."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}, line {error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith("<frozen") and frame.filename != __file__]
    mine = [frame for frame in own if package in (Path(frame.filename).stem, *Path(frame.filename).parts)]
    where = mine or own
    return f" ({where[-1].filename}, line {where[-1].lineno})" if where else ""


def dotted_name(of: Any) -> str:
    """Return the module and the name of a class or function, as ``find_plugin`` takes it."""
    if isinstance(of, LibraryCode):
        return of.name
    return f"{of.__module__}:{of.__qualname__}"


def offered_name(kind: PluginKind, name: str, of: Any) -> str:
    """Return the name under which a class or function is found again: the entry point ``name`` where that is it, else
    that of its module.
    """
    for entry in _offers(kind.group).get(name, []):  # it may name what its package imports from a module of its own
        if getattr(sys.modules.get(entry.module), entry.attr, None) is of:
            return name
    return dotted_name(of)


def code_digest(of: Any) -> str:
    """Return the SHA-256 of the source of the package that holds a class or function: of its module, where that is in
    no package, and of ``typed_source``, where it is typed into a script or a notebook. Of a library: its version's.

    It is that of the code that this process imported, whatever was edited since (``check_as_imported``).
    """
    if isinstance(of, LibraryCode):
        return of.digest()
    module = sys.modules[of.__module__]
    if of.__module__ == "__main__" or not getattr(module, "__file__", None):
        return hashlib.sha256(typed_source(of).encode()).hexdigest()
    return _remembered(module)[1]


def check_as_imported(of: Any) -> None:
    """Raise InputError where the source of a class or function was edited after this process had imported it, so that
    it would train with what is no longer there.
    """
    module = None if isinstance(of, LibraryCode) else sys.modules[of.__module__]
    if module is None or module.__name__ == "__main__" or not getattr(module, "__file__", None):
        return
    folders, digest = _remembered(module)
    if _digest_in(folders, module) != digest or _was_reloaded(of, module):
        raise InputError(
            f"the source of {of.__module__} was edited after this Python had imported it, and {of.__qualname__} is as"
            " it was: start Python anew (in a notebook: restart the kernel)"
        )


_IMPORTED: dict[str, tuple[ModuleType, object, list[Path], str]] = {}
"""Package, or module in none -> itself, its spec, which reloading changes, its folders, and the digest of its source as
it was imported."""


def _remembered(module: ModuleType) -> tuple[list[Path], str]:
    """Return the folders of a module's package, none where it is in none, and the digest of the source: as it was
    imported, or, where somebody else had imported it, first asked for. Reloading makes a module new, and no package.
    """
    top = sys.modules.get(module.__name__.partition(".")[0], module)
    in_package = bool(getattr(top, "__path__", ()))
    whole = top if in_package else module
    known, spec, folders, digest = _IMPORTED.get(whole.__name__, (None, None, [], ""))
    if known is not whole or (spec is not whole.__spec__ and not in_package):
        folders = [Path(folder) for folder in getattr(whole, "__path__", ())]
        digest = _digest_in(folders, module)
        _IMPORTED[whole.__name__] = whole, whole.__spec__, folders, digest
    return folders, digest


def _was_reloaded(of: Any, module: ModuleType) -> bool:
    """Return whether a class is one that another of its own name took the place of."""
    now = getattr(module, of.__qualname__, of)
    return now is not of and dotted_name(now) == dotted_name(of) if inspect.isclass(now) else False


def _digest_in(folders: list[Path], module: ModuleType) -> str:
    """Return the SHA-256 of the source in a package's folders; of the module's, where there are none."""
    files = [(path.relative_to(folder).as_posix(), path) for folder in folders for path in folder.rglob("*.py")]
    digest = hashlib.sha256()
    for name, path in sorted(files) or [(module.__name__, Path(str(module.__file__)))]:
        status = path.stat()
        digest.update(repr((name, _file_digest(path, status.st_mtime_ns, status.st_size))).encode())
    return digest.hexdigest()


@cache
def _file_digest(path: Path, changed: int, size: int) -> str:
    """Return the SHA-256 of a file. changed, size: of the file, so that one that was edited is read again."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def typed_source(of: Any) -> str:
    """Return the source of a class or function that was typed into a script or a notebook, and of the functions and
    classes typed there that it names, with the plain values among these: its trainer, its base, a constant.
    """
    typed = vars(sys.modules[of.__module__])
    found, left = {str(of.__qualname__): _source(of)}, [of]
    while left:
        for name in _named(left.pop()) - found.keys():
            value = inspect.unwrap(typed[name]) if callable(typed.get(name)) else typed.get(name)
            if (inspect.isfunction(value) or inspect.isclass(value)) and value.__module__ == of.__module__:
                found[name] = _source_if_any(value)
                left.append(value)
            elif name in typed:
                with suppress(TypeError, ValueError):  # what is no plain value has no text that says what it is
                    found[name] = json.dumps(value, sort_keys=True)
    return json.dumps(found, sort_keys=True)


def _source_if_any(of: Any) -> str:
    """Return the source of a class or function; of a class that Python has none of (a notebook's, a named tuple), that
    of its functions.
    """
    try:
        return inspect.getsource(of)
    except (OSError, TypeError):
        return (
            "".join(map(_source_if_any, filter(inspect.isfunction, vars(of).values()))) if inspect.isclass(of) else ""
        )


def _named(of: Any) -> set[str]:
    """Return the names of its module that the source of a class or function reads."""
    try:
        tables = [symtable.symtable(textwrap.dedent(_source_if_any(of)), "typed", "exec")]
    except SyntaxError:  # a lambda, in the midst of its line
        return set(of.__code__.co_names) if inspect.isfunction(of) else set()
    names = set[str]()
    for table in tables:  # which grows
        tables += table.get_children()
        whole = table.get_type() == "module"
        names |= {s.get_name() for s in table.get_symbols() if s.is_referenced() and (whole or s.is_global())}
    return names


def _source(of: Any) -> str:
    try:
        return inspect.getsource(of)
    except (OSError, TypeError) as error:
        raise InputError(
            f"{dotted_name(of)}: Python does not have its source, without which no run can say what it trained with:"
            " put it into a module of its own"
        ) from error


def version_of(name: str) -> str:
    """Return the version of an installed package."""
    try:
        return version(name)
    except PackageNotFoundError:  # a serial run without MLflow needs neither Ray nor MLflow
        return "not installed"


@cache
def _packages() -> Mapping[str, list[str]]:
    """Return the installed packages of every top-level module; it reads the files of all, most of a second."""
    from importlib.metadata import packages_distributions

    return packages_distributions()


def packages_of(of: Any) -> list[str]:
    """Return the packages that a class or function is of, ``fancy-fl==0.2``; none where it is of no installed one."""
    if isinstance(of, LibraryCode):
        return [of.package]
    names = _packages().get(of.__module__.partition(".")[0], [])
    return [f"{name}=={version(name)}" for name in dict.fromkeys(names)]
