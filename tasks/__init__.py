"""The tasks by name."""

from __future__ import annotations

from collections.abc import Callable

from tasks.contract import Task
from tasks.images.digits import digits
from tasks.text.r8 import r8
from tasks.toy.multi import toy_multi
from tasks.toy.single import toy_single

TASKS: dict[str, Callable[[], Task]] = {
    "digits": digits,
    "r8": r8,
    "toy-multi": toy_multi,
    "toy-single": toy_single,
}
