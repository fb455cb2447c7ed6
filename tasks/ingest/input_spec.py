"""The form of inputs that options name, in place of one that is fitted on the training rows."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from anchorfl.tasks.contract import InputSpec
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.json_schema import converted, parsed
from anchorfl.tasks.files.regular_files import read_text_bytes
from anchorfl.tasks.options import TaskOptions

PLACES = (("model.json", "input"), ("manifest.json", "spec"))
"""Files that hold one, and under which name: a saved model's, and prepared data's."""
WHERE = "[task] input_spec"


def spec_digest(options: TaskOptions) -> str:
    """Return the sha256 of the form that options name; "" where they name none. Errors as ``given_spec``."""
    return hashlib.sha256(repr(given_spec(options)).encode()).hexdigest() if options.input_spec else ""


def given_spec(options: TaskOptions) -> InputSpec:
    """Return the form that options name. InputError: there is none."""
    folder = Path(options.input_spec)
    for name, key in PLACES:
        path = folder / name
        if os.path.isfile(path):  # of a name too long, no error
            content = parsed(read_text_bytes(path), dict[str, Any], path, "give another folder")
            try:
                spec: InputSpec = converted(content[key], InputSpec)
            except (KeyError, ValueError, TypeError) as error:
                raise InputError(f"{path} has no form of inputs ({error}); give another folder") from error
            if fault := spec.fault():
                raise InputError(f"{path}: {fault}; give another folder")
            return spec
    raise InputError(f"{WHERE} = {options.input_spec!r}: no folder of a saved model or of prepared data; give one")


def check_fits(spec: InputSpec, own: InputSpec) -> InputSpec:
    """Return the given form with the labels' columns of these data. InputError where its inputs are others.

    own: what these data would be given.
    """
    same = (spec.kind, spec.columns and spec.columns.inputs) == (own.kind, own.columns and own.columns.inputs)
    if not same:
        raise InputError(f"{WHERE}: it is for inputs of kind {spec.kind!r}, or of other columns; give another folder")
    # images are stored as levels, and scaled as either form says
    if bool(spec.levels) != bool(own.levels) or (not own.levels and bool(spec.mean) != bool(own.mean)):
        raise InputError(f"{WHERE}: it scales its inputs otherwise than these data need it; give another folder")
    if spec.columns is None or own.columns is None:
        return spec
    texts, own_texts = ({*columns.categories} for columns in (spec.columns, own.columns))
    if odd := sorted(texts ^ own_texts):
        there, here = ("texts", "numbers") if odd[0] in texts else ("numbers", "texts")
        raise InputError(
            f"{WHERE}: its column {odd[0]!r} holds {there}, and that of these data {here}; write both alike (texts that"
            " look like numbers are texts in a Parquet file), or give another folder"
        )
    return replace(spec, columns=replace(own.columns, categories=spec.columns.categories))
