"""Bad rows of raw files: stop at the first, or leave them out, counted and listed (``task.on_bad_row``)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from anchorfl.tasks.arrays.arrow import Table
from anchorfl.tasks.errors import InputError, escaped
from anchorfl.tasks.options import TaskOptions

KEY = b"anchorfl.skipped"
LISTED = 1000
"""So many of the rows that were left out are listed; all are counted."""


@dataclass(slots=True)
class BadRows:
    """The account of rows that a reader cannot use."""

    skip: bool
    """Leave bad rows out; else the first one ends the reading."""
    choice: bool = True
    """False where no option leaves them out: every row is asked about."""
    count: int = 0
    """Number of rows that were left out."""
    listed: list[str] = field(default_factory=list)
    """The first of them, each with location and fault."""

    @classmethod
    def of(cls, options: TaskOptions) -> BadRows:
        """Return the account that ``options.on_bad_row`` asks for."""
        return cls(options.on_bad_row == "skip")

    def meet(self, message: str) -> None:
        """Count a bad row, or raise InputError where none is left out. message: ``<file>:<line>: <fault>; <hint>``."""
        if not self.skip:
            raise InputError(message + self.choice * ", or leave such rows out with --task.on_bad_row skip")
        self.count += 1
        if len(self.listed) < LISTED:
            self.listed.append(escaped(message))

    def noted(self, table: Table) -> Table:
        """Return the table with this account in its metadata, where ``skipped`` finds it."""
        if not self.count:
            return table
        account = json.dumps({"count": self.count, "listed": self.listed}).encode()
        return table.replace_schema_metadata({**(table.schema.metadata or {}), KEY: account})


def skipped(table: Table) -> tuple[int, list[str]]:
    """Return how many rows were left out of a table that ``read`` gave, and the first of them."""
    account = json.loads((table.schema.metadata or {}).get(KEY, b'{"count": 0, "listed": []}'))
    return account["count"], account["listed"]
