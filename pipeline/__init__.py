"""HOW a run runs. Refuses foreign ``tasks``, ``models`` or ``tuning``: docs/adr/0001-flat-packages.md."""

from importlib.util import find_spec
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
for _name in ("tasks", "models", "tuning"):
    _spec = find_spec(_name)
    _folders = [Path(_folder).resolve() for _folder in (_spec and _spec.submodule_search_locations) or []]
    if _spec is not None and _folders != [_ROOT / _name]:
        _found = ", ".join(map(str, _folders)) or _spec.origin
        raise ImportError(
            f"{_name!r} came from {_found}, not from {_ROOT / _name}: another package or a folder earlier on sys.path "
            f"has that name; uninstall or move it, or start Python in {_ROOT}"
        )
