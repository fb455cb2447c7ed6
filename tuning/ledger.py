"""What happened in a sweep, in order, one line per event: what a sweep is resumed from.

Events: ``suggest`` (trial, point), ``result`` (trial, round, record), ``end`` (trial, status, error), ``start`` (a
process took the sweep up, with its versions). Searcher and scheduler hold nothing that replaying the events through
them would not give back, so they are never saved, and no pickle is ever read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.contract import InputError

Event = dict[str, Any]


class Ledger:
    """The events of a sweep: read at first, then appended to; a line is on the disk when ``write`` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events = list(self._read())

    def write(self, event: Event) -> None:
        """Append one event."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(event, allow_nan=False) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        self.events.append(event)

    def _read(self) -> Iterator[Event]:
        """All whole lines; a half-written last one, which a kill leaves, is cut off. InputError names a damaged one."""
        if not self.path.exists():
            return
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            with self.path.open("r+b") as stream:
                stream.truncate(len(whole))
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                event = json.loads(line)
                event["event"], event.get("trial")
            except (ValueError, TypeError, KeyError) as error:
                raise InputError(
                    f"{self.path}:{number} is damaged ({error}); delete that line and what follows, then resume again:"
                    " trials that had finished keep their folders and are not trained again"
                ) from error
            yield event
