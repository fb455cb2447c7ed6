"""``anchorfl data fetch`` against a server of the tests' own, which serves made-up files."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath

import pytest

from anchorfl.pipeline.cli.main import main
from anchorfl.tasks.files import archives, download
from anchorfl.tasks.files.raw_files import file_names, raw_folder, variants
from anchorfl.tasks.files.sources import SOURCES, RemoteFile
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.registry import TASKS


class Server(ThreadingHTTPServer):
    """Serves bytes by their paths, and writes down what it was asked for."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, str]] = []
        self.cuts: list[int] = []
        self.ranges, self.version, self.kind = True, '"1"', "application/octet-stream"

    def handle_error(self, *_):
        """A client that hangs up early is meant to; its traceback would stand on stderr."""

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server, wanted = self.server, self.headers.get("Range", "")
        server.asked.append((self.path, wanted))
        data = server.files.get(self.path.rpartition("/")[2])
        if data is None:
            self.send_error(404)
            return
        begin = int(wanted[len("bytes=") : -1]) if wanted and server.ranges else 0
        begin = begin if self.headers.get("If-Range") == server.version else 0
        self.send_response(206 if begin else 200)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        if server.version:
            self.send_header("ETag", server.version)
        self.send_header("Content-Type", server.kind)
        self.send_header("Content-Length", str(len(data) - begin))
        self.end_headers()
        self.wfile.write(data[begin : begin + server.cuts.pop(0)] if server.cuts else data[begin:])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(download, "PAUSE", 0)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def data(here, monkeypatch):
    monkeypatch.setenv("ANCHORFL_DATA", str(here / "data"))
    monkeypatch.setenv("ANCHORFL_CACHE", str(here / "cache"))
    return here / "data"


@pytest.fixture
def yeast(server, data, made_up, monkeypatch):
    """Serve made-up files of yeast with their digests; return its folder."""
    raw = made_up("yeast", 90, 0)
    server.files = {path.name: path.read_bytes() for path in raw.iterdir() if path.is_file()}
    sources = [RemoteFile(name, f"{server.url}/{name}", sha256(text)) for name, text in server.files.items()]
    monkeypatch.setitem(SOURCES, "yeast", tuple(sources))
    return data / TASKS["yeast"]().folder


@pytest.fixture
def one(server, data, monkeypatch):
    """Return a function that serves one file for R8's training texts, beside test texts that are there."""

    def make(content=b"earn\tprofit up\n" * 50_000, digest="right"):
        server.files["train"] = content
        digest = sha256(content) if digest == "right" else digest
        monkeypatch.setitem(SOURCES, "r8", (RemoteFile("r8-train-stemmed.txt", f"{server.url}/train", digest),))
        folder = data / TASKS["r8"]().folder
        folder.mkdir(parents=True)
        (folder / "r8-test-stemmed.txt").write_text("earn\tprofit up\n")
        return folder / "r8-train-stemmed.txt"

    return make


def sha256(content):
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def zipped(members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def test_whole_and_then_prepared(yeast, server, capsys):
    assert main(["data", "fetch", "yeast", "--accept-licence"]) == 0
    shown = capsys.readouterr().out
    assert TASKS["yeast"]().source.licence in shown
    assert {path.name: path.read_bytes() for path in yeast.iterdir() if path.name != "fetched.json"} == server.files
    record = json.loads((yeast / "fetched.json").read_text())
    assert record["yeast.xml"] == {
        "url": f"{server.url}/yeast.xml", "sha256": sha256(server.files["yeast.xml"])[7:],
        "bytes": len(server.files["yeast.xml"]), "verified": True,
    }  # fmt: skip
    task, options = TASKS["yeast"](), TaskOptions(name="yeast")
    assert task.read(raw_folder(task, options), options).num_rows == 90
    asked = len(server.asked)
    assert main(["data", "fetch", "yeast"]) == 0, "what is there needs no consent"
    assert len(server.asked) == asked


def test_refused_terms_ask_for_nothing(yeast, server, fails):
    fails(["data", "fetch", "yeast"], f"its terms ({TASKS['yeast']().source.licence}) are not accepted")
    assert not server.asked
    assert not yeast.exists()


def test_a_connection_that_breaks_goes_on(one, server):
    path = one()
    server.cuts = [200_000, 100_000]
    assert main(["data", "fetch", "r8", "--accept-licence"]) == 0
    assert [wanted for _, wanted in server.asked] == ["", "bytes=196608-", "bytes=262144-"]
    assert path.read_bytes() == server.files["train"]


@pytest.mark.parametrize("case", ["resumed", "no ranges", "no version", "another version"])
def test_interrupted_and_asked_for_again(one, server, fails, case):
    path = one()
    server.cuts = [200_000, 0]
    if case == "no version":
        server.version = ""
        server.cuts = [200_000, 100_000]  # what is begun anew never grows
    fails(["data", "fetch", "r8", "--accept-licence"], "the connection broke after 0.2 MB")
    assert not path.exists()
    server.asked.clear()
    server.ranges = case != "no ranges"
    server.version = '"2"' if case == "another version" else server.version
    assert main(["data", "fetch", "r8", "--accept-licence"]) == 0
    assert [wanted for _, wanted in server.asked] == ["" if case == "no version" else "bytes=196608-"]
    assert path.read_bytes() == server.files["train"]
    assert sorted(p.name for p in path.parent.iterdir()) == ["fetched.json", "r8-test-stemmed.txt", path.name]


def test_another_digest_leaves_no_file(one, server, fails):
    path = one(digest=sha256(b"another"))
    fails(["data", "fetch", "r8", "--accept-licence"], "does not match the known hash")
    assert [p.name for p in path.parent.iterdir()] == ["r8-test-stemmed.txt"]


def test_without_a_digest_only_on_request_and_the_same_from_then_on(one, server, fails, capsys):
    path = one(digest="")
    fails(["data", "fetch", "r8", "--accept-licence"], "add --unverified")
    assert not server.asked
    assert main(["data", "fetch", "r8", "--accept-licence", "--unverified"]) == 0
    assert f"{sha256(server.files['train'])[7:]}, compared with nothing" in capsys.readouterr().out
    path.unlink()
    server.files["train"] += b"earn\tanother\n"
    fails(["data", "fetch", "r8", "--accept-licence", "--unverified"], "does not match the known hash")
    assert not path.exists()


def test_no_network(one, server, fails):
    path = one()
    SOURCES["r8"] = (RemoteFile(path.name, "http://127.0.0.1:9/train", SOURCES["r8"][0].digest),)
    said = fails(["data", "fetch", "r8", "--accept-licence"], "127.0.0.1 cannot be reached")
    assert f"put it at {path}" in said
    assert "HTTPS_PROXY" in said


def test_behind_a_proxy(one, server, monkeypatch):
    path = one()
    monkeypatch.setenv("http_proxy", server.url)
    SOURCES["r8"] = (RemoteFile(path.name, "http://data.invalid/train", SOURCES["r8"][0].digest),)
    assert main(["data", "fetch", "r8", "--accept-licence"]) == 0
    assert server.asked == [("http://data.invalid/train", "")]


def test_a_page_or_an_error_in_place_of_the_file(one, server, fails):
    one()
    server.kind = "text/html; charset=utf-8"
    fails(["data", "fetch", "r8", "--accept-licence"], "answers with a page")
    server.files.clear()
    fails(["data", "fetch", "r8", "--accept-licence"], "the server answers 404")


@pytest.fixture
def pamap2(server, data, monkeypatch):
    """Return a function that serves an archive for PAMAP2."""

    def make(members):
        server.files["set.zip"] = content = zipped(members)
        monkeypatch.setitem(SOURCES, "pamap2", (RemoteFile("set.zip", f"{server.url}/set.zip", sha256(content)),))
        return data / "pamap2"

    return make


FETCH = ["data", "fetch", "pamap2", "--accept-licence"]


def test_an_archive_within_an_archive(pamap2):
    inner = zipped({"Set/Protocol/subject101.dat": "1", "Set/Optional/subject101.dat": "2", "Set/readme.txt": "3"})
    folder = pamap2({"readme.pdf": "4", "Set.zip": inner, "__MACOSX/._subject101.dat": "5"})
    assert main(FETCH) == 0
    found = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.dat")}
    assert found == {"Set/Protocol/subject101.dat": "1", "Set/Optional/subject101.dat": "2"}
    assert not (folder / "set.zip").exists()


def test_an_archive_that_was_unpacked_in_part_is_unpacked_again(pamap2, monkeypatch, capsys):
    """Of a data set that is any number of files, some would do for the rest."""
    names = [f"Set/Protocol/subject10{n}.dat" for n in range(1, 5)]
    folder, plain = pamap2(dict.fromkeys(names, "1")), archives._write

    def full(content, info, path):
        if info.filename == names[3]:
            raise OSError(errno.ENOSPC, "No space left on device")
        plain(content, info, path)

    monkeypatch.setattr(archives, "_write", full)
    assert main(FETCH) != 0
    assert not list(folder.rglob("*.dat"))
    monkeypatch.setattr(archives, "_write", plain)
    path = folder / names[0]
    path.parent.mkdir(parents=True)
    path.write_text("1")  # as a kill leaves it that comes while files get their places
    assert main(FETCH) == 0
    assert len(list(folder.rglob("*.dat"))) == 4
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []
    capsys.readouterr()
    assert main(FETCH) == 0
    assert "nothing to fetch" in capsys.readouterr().out


def test_folders_above_what_is_read_are_left_out(server, data, monkeypatch):
    folders = [name.partition("/")[0] for name in TASKS["kvasir-v2"]().source.files]
    server.files["k.zip"] = content = zipped({f"kvasir-dataset-v2/{name}/1.jpg": name for name in folders})
    monkeypatch.setitem(SOURCES, "kvasir-v2", (RemoteFile("k.zip", f"{server.url}/k.zip", sha256(content)),))
    assert main(["data", "fetch", "kvasir-v2", "--accept-licence"]) == 0
    assert [(data / "kvasir-dataset-v2" / name / "1.jpg").read_text() for name in folders] == folders


def _link():
    info = zipfile.ZipInfo("Protocol/subject102.dat")
    info.external_attr = 0o120777 << 16
    return info


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"subject101.dat": "1", "../subject102.dat": "2"}, "leads out of the folder"),
        ({"subject101.dat": "1", "/tmp/subject102.dat": "2"}, "leads out of the folder"),
        ({"subject101.dat": "1", "a\\..\\..\\subject102.dat": "2"}, "leads out of the folder"),
        ({"subject101.dat": "1", _link(): "/etc/passwd"}, "or is a link"),
        ({"a/subject101.dat": "1", "b.zip": zipped({"../subject102.dat": "2"})}, "leads out of the folder"),
        ({"subject101.dat": bytes(1 << 27)}, "unpacks to more than"),
        ({"readme.txt": "1"}, "holds none of"),
        ({"b.zip": "1"}, "damaged"),
    ],
)
def test_an_archive_that_is_refused_in_whole(pamap2, fails, members, message):
    folder = pamap2(members)
    fails(FETCH, message)
    assert not [*folder.parent.parent.rglob("*.dat")]


def test_a_folder_that_leads_elsewhere_by_a_link(pamap2, here, fails):
    folder = pamap2({"Set/Protocol/subject101.dat": "1"})
    folder.mkdir(parents=True)
    (here / "elsewhere").mkdir()
    (folder / "Set").symlink_to(here / "elsewhere")
    fails(FETCH, "leads out of")
    assert not [*(here / "elsewhere").rglob("*")]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["femnist"], f"by hand from {TASKS['femnist']().source.url}"),
        (["mimic3-50"], "access must be applied for"),
        (["yeest"], "did you mean 'yeast'"),
        (["r8", "--variant", "stemed"], "did you mean 'stemmed'"),
    ],
)
def test_what_is_not_fetched(data, fails, words, message):
    fails(["data", "fetch", *words, "--accept-licence"], message)


def test_no_folder_is_named(fails, monkeypatch, here):
    monkeypatch.delenv("ANCHORFL_DATA", raising=False)
    fails(["data", "fetch", "yeast", "--accept-licence"], "set $ANCHORFL_DATA")


def test_every_source_is_a_file_that_its_data_set_reads():
    for name, files in SOURCES.items():
        task = TASKS[name]()
        assert {file.variant for file in files} <= {"", *variants(task)}
        for file in files:
            kind, _, digits = file.digest.partition(":")
            assert len(digits) == {"": 0, "md5": 32, "sha256": 64}[kind]
            options = TaskOptions(name=name, variant=file.variant)
            patterns = ["*.zip", *file_names(task, options), *task.source.optional]
            assert any(PurePosixPath(file.path).match(pattern) for pattern in patterns), file
