"""AnchorFL as a wheel, made of the files that run: a logged model carries it, so that it loads where nobody has it.

AnchorFL is on no index. A requirement by its name would find nothing there, or whatever somebody has put under it.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Iterator
from importlib.metadata import distributions, version
from pathlib import Path

NAME = "anchorfl"
PACKAGE = Path(__file__).absolute().parents[2]
"""Its folder. Resolving would follow the links of a checkout."""
VERSION = version(NAME) if list(distributions(name=NAME)) else "0"
"""0: of a checkout that is not installed."""
FILE = f"{NAME}-{VERSION}-py3-none-any.whl"
_FIRST_TIME = (1980, 1, 1, 0, 0, 0)
"""The earliest that a zip file knows, so that the same files make the same wheel."""


def write_wheel(folder: Path) -> Path:
    """Write the wheel into ``folder``, without requirements: whoever installs it says which. Return its path."""
    info = f"{NAME}-{VERSION}.dist-info"
    about = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: anchorfl\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record, path = list[str](), folder / FILE
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in (*_files(), *about.items()):
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(content)}")
            wheel.writestr(zipfile.ZipInfo(name, _FIRST_TIME), content, zipfile.ZIP_DEFLATED)
        record.append(f"{info}/RECORD,,")
        wheel.writestr(zipfile.ZipInfo(f"{info}/RECORD", _FIRST_TIME), "\n".join([*record, ""]), zipfile.ZIP_DEFLATED)
    return path


def _files() -> Iterator[tuple[str, bytes]]:
    """Yield the files of the package, by name; in a checkout some of its folders are links."""
    yield from _below(PACKAGE, NAME)


def _below(folder: Path, name: str) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path.name != "__pycache__":
            yield from _below(path, f"{name}/{path.name}")
        elif path.is_file():
            yield f"{name}/{path.name}", path.read_bytes()
