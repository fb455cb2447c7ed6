"""ExtraSensory: what is wrong with a file is named with its line and field, or left out and counted."""

from __future__ import annotations

import gzip
import re

import pytest

from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.bad_rows import skipped
from anchorfl.tasks.signals.extrasensory import read
from anchorfl.tasks.signals.extrasensory_columns import COLUMNS
from tests.tasks.minutes import edit, files, lines_of, options, put, same
from tests.tasks.raw_tables import left_out

BAD = [
    (lambda f: f.pop(), "277 fields, but 278 are needed; correct or remove the line"),
    (lambda f: f.append("1"), "279 fields, but 278 are needed; correct or remove the line"),
    (put("label:SITTING", "2.0"), "2 in column 'label:SITTING'; a label is 0, 1 or nan: correct or remove the line"),
    (put("label:TOILET", "0.5"), "0.5 in column 'label:TOILET'; a label is 0, 1 or nan: correct or remove the line"),
    (put("label:SITTING", "yes"), "'yes' in column 'label:SITTING' is no number; correct it or remove the line"),
    (put("raw_acc:3d:mean_x", "1_0"), "'1_0' in column 'raw_acc:3d:mean_x' is no number; correct it or remove"),
    (
        put("raw_acc:3d:mean_x", "1e99"),
        "the value in column 'raw_acc:3d:mean_x' is not finite or too large for float32",
    ),
    (put("raw_acc:3d:mean_x", "inf"), "the value in column 'raw_acc:3d:mean_x' is not finite or too large for float32"),
    (put("timestamp", ""), "no number in column 'timestamp'; fill it in or remove the line"),
    (put("timestamp", "noon"), "'noon' in column 'timestamp' is no number; correct it or remove the line"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
@pytest.mark.parametrize("line", [2, 41])
def test_a_bad_row_is_named_or_left_out(folder, change, message, line):
    path = files(folder)[3]
    edit(path, line, change)
    table = left_out(lambda **more: read(folder, options(**more)), f"{path}:{line}: {message}")
    with pytest.raises(InputError, match=r"or leave such rows out with --task\.on_bad_row skip\Z"):
        read(folder, options())
    lines = lines_of(path)
    path.write_bytes(gzip.compress("\n".join([*lines[: line - 1], *lines[line:]]).encode()))
    assert same(table, read(folder, options()))


def test_several_bad_rows_are_all_counted_by_line(folder):
    path = files(folder)[0]
    edit(path, 30, put("raw_acc:3d:mean_x", "x"))
    edit(path, 20, lambda fields: fields.pop())
    edit(path, 10, put("label:SITTING", "3"))
    edit(path, 5, put("timestamp", "-inf"))
    count, listed = skipped(read(folder, options(on_bad_row="skip")))
    assert count == 4
    assert [int(text.split(":")[1]) for text in listed] == [5, 10, 20, 30]


def test_a_timestamp_that_stands_twice_is_named(folder):
    path = files(folder)[0]
    first = lines_of(path)[16].split(",")[0]
    edit(path, 34, put("timestamp", first))
    message = f"{path}:34: timestamp {first} stands twice for this user, first in line 17; keep one of the rows"
    with pytest.raises(InputError, match=re.escape(message)):
        read(folder, options())
    assert skipped(read(folder, options(on_bad_row="skip")))[0] == 1


def test_order_of_lines_line_ends_and_empty_lines_do_not_matter(folder):
    before, path = read(folder, options()), files(folder)[0]
    header, *rows = lines_of(path)
    path.unlink()
    text = "\r\n".join([header, *rows[50:], "", *rows[:50], "", ""])
    path.with_suffix("").write_text(text, newline="")
    assert same(read(folder, options()), before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.__setitem__(6, "raw_acc:x"), "column 7 is 'raw_acc:x' instead of 'raw_acc:magnitude_stats:perc"),
        (lambda f: f.pop(), "277 columns instead of 278; get the file of features and labels as the data set has it"),
        (lambda f: f.append("more"), "279 columns instead of 278; get the file"),
        (lambda f: f.pop(0), "column 1 is 'raw_acc:magnitude_stats:mean' instead of 'timestamp'; get the file"),
    ],
)
def test_another_header_is_named(folder, change, message):
    path = files(folder)[0]
    edit(path, 1, change)
    for on_bad_row in ("error", "skip"):
        with pytest.raises(InputError, match=re.escape(f"{path}:1: {message}")):
            read(folder, options(on_bad_row=on_bad_row))


def test_damaged_files_are_named(folder):
    path = files(folder)[0]
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=rf"{re.escape(str(path))}:\d+: the gzip file is damaged or cut short near"):
        read(folder, options())
    path.write_bytes(whole[:2000] + b"\0\0\0\0" + whole[2004:])
    with pytest.raises(InputError, match=rf"{re.escape(str(path))}:\d+: the gzip file is damaged or cut short near"):
        read(folder, options())
    path.write_bytes(b"no gzip at all")
    with pytest.raises(InputError, match="the gzip file is damaged"):
        read(folder, options())
    path.write_bytes(b"")
    with pytest.raises(InputError, match="the gzip file is damaged or cut short"):
        read(folder, options())
    path.write_bytes(gzip.compress(b""))
    with pytest.raises(InputError, match=r"features_labels\.csv\.gz: the file is empty; get it again"):
        read(folder, options())


def test_a_gzip_file_of_several_members_is_read_whole(folder):
    before, path = read(folder, options()), files(folder)[0]
    text = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(text[:5000]) + gzip.compress(text[5000:]))
    assert same(read(folder, options()), before)


def test_a_file_without_minutes_gives_no_sequence(folder):
    for path in files(folder):
        path.write_bytes(gzip.compress(",".join(COLUMNS).encode() + b"\n"))
    with pytest.raises(InputError, match="no minute of any file has a positive label"):
        read(folder, options())


def test_users_and_folds_that_do_not_fit_are_named(folder):
    path = files(folder)[0]
    user = path.name.partition(".")[0]
    path.with_suffix("").write_text("")
    with pytest.raises(InputError, match=r"\.csv is of the same user; keep one of the two files"):
        read(folder, options())
    path.with_suffix("").unlink()
    for fold in (-1, 5):
        with pytest.raises(InputError, match=rf"\[task\] fold = {fold} must be one of 0\.\.4"):
            read(folder, options(fold=fold))
    lists = sorted(folder.glob("cv_5_folds/fold_*_test_*"))
    home = next(each for each in lists if user in each.read_text())
    home.write_text(home.read_text().replace(f"{user}\n", ""))
    with pytest.raises(InputError, match=f"no test fold has user {user}; add the user to one, or remove the folder"):
        read(folder, options())
    for each in lists[:4]:
        each.write_text(f"{user}\n")
    message = f"fold_1_test_android_uuids.txt:1: user {user} is tested in fold 0 already"
    with pytest.raises(InputError, match=re.escape(message)):
        read(folder, options())


def test_a_fold_of_users_who_are_not_here_is_refused(folder):
    tested = {line for path in folder.glob("cv_5_folds/fold_2_test_*") for line in path.read_text().split()}
    for path in files(folder):
        if path.name.partition(".")[0] in tested:
            path.unlink()
    message = "no user of fold 2 is here, only of 0, 1, 3, 4; choose one of those as [task] fold"
    with pytest.raises(InputError, match=re.escape(message)):
        read(folder, options(fold=2))
