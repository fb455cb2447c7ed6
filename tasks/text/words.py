"""Words of texts as numbers: vocabulary and encoding, column-wise in Arrow."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anchorfl.tasks.arrays.arrow import Column, Table
from anchorfl.tasks.arrays.ragged import offsets
from anchorfl.tasks.contract import InputSpec
from anchorfl.tasks.errors import InputError

PADDING, UNKNOWN = "<pad>", "<unk>"


def tokenize(texts: Column) -> Column:
    """Return list<string> column: every text in lower case, split at white space."""
    words = pc.utf8_split_whitespace(pc.utf8_lower(pc.utf8_trim_whitespace(texts)))
    return words.combine_chunks() if isinstance(words, pa.ChunkedArray) else words


def vocabulary(texts: Column, min_count: int) -> tuple[str, ...]:
    """Return padding, unknown, then the words seen at least ``min_count`` times, most frequent first, equals by the
    alphabet.

    Raises InputError where no word is that frequent.
    """
    counts = Counter[str]()
    for chunk in texts.chunks if isinstance(texts, pa.ChunkedArray) else [texts]:  # Arrow joins no 2 GiB of text
        for entry in pc.value_counts(pc.list_flatten(tokenize(chunk))).to_pylist():
            counts[entry["values"]] += entry["counts"]
    frequent = sorted((-count, word) for word, count in counts.items() if count >= min_count and word)
    if not frequent:
        raise InputError(f"no word occurs {min_count} times in the training texts; lower [task] min_count")
    return (PADDING, UNKNOWN, *(word for _, word in frequent))


def token_spec(texts: Column, min_count: int, max_tokens: int) -> InputSpec:
    """Return the tokens over the vocabulary of the given training texts, at most ``max_tokens`` of a text."""
    if max_tokens < 1:
        raise InputError(f"[task] max_tokens = {max_tokens} must be at least 1")
    return InputSpec("tokens", (max_tokens,), vocabulary(texts, min_count))


def encode_text(table: Table, spec: InputSpec) -> Table:
    """Return the Encode of text tasks: ``x`` list<int32> (word ids, at most ``spec.shape[0]``) in place of ``text``."""
    words = pc.list_slice(tokenize(table["text"]), 0, spec.shape[0])
    # pyarrow gives null for a word outside the vocabulary
    index = pc.index_in(pc.list_flatten(words), value_set=pa.array(spec.vocabulary[2:], type=pa.string()))
    ids = pc.fill_null(pc.add(index, pa.scalar(2, pa.int32())), pa.scalar(1, pa.int32()))
    offset_N1 = offsets(pc.list_value_length(words).to_numpy(zero_copy_only=False)).astype(np.int32)
    x = pa.ListArray.from_arrays(pa.array(offset_N1), ids.cast(pa.int32()))
    return table.drop_columns(["text"]).append_column("x", x)
