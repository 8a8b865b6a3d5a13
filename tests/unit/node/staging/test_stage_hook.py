"""hook.py's wrappers of MXNet's readers and writers; test_saving.py has the real MXNet."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from node.staging import hook
from project import REPOSITORY

ASKED = list[tuple[str, Any, int]]


class Library:
    """The functions of MXNet's C library that read and write. code: the result of those that write."""

    def __init__(self, code: int = 0) -> None:
        self.called: list[Any] = []
        self.code = code
        self.freed: list[int] = []

    def MXSymbolSaveToFile(self, _: object, name: Any) -> int:  # noqa: N802 - its name
        Path(name.value.decode()).write_text("a symbol")
        return self.code

    def MXRecordIOWriterCreate(self, uri: Any, handle: Any) -> int:  # noqa: N802 - its name
        handle._obj.value = 77  # the same for each handle, because freed memory is reused
        Path(uri.value.decode()).write_text("records")
        return 0

    def MXRecordIOWriterFree(self, handle: Any) -> int:  # noqa: N802 - its name
        self.freed.append(handle.value)
        return self.code

    def MXGetLastError(self) -> bytes:  # noqa: N802 - its name
        return b"MXNet's own message"

    def MXRecordIOReaderCreate(self, uri: Any, *_: object) -> int:  # noqa: N802 - its name
        self.called.append(getattr(uri, "value", uri))
        return 0

    def MXDataIterCreateIter(self, _: object, count: Any, keys: Any, values: Any, *_more: object) -> int:  # noqa: N802
        self.called.append({keys[at]: values[at] for at in range(count.value)})
        return 0


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> ASKED:
    seen: ASKED = []

    def find(uri: str, part: Any = None, shuffle_mib: int = 0) -> str:
        seen.append((uri, part, shuffle_mib))
        return uri.replace("s3://", "/local/")

    monkeypatch.setattr(hook.STAGE, "find", find)
    return seen


def create(library: Any, **settings: str) -> None:
    names = [name.encode() for name in settings]
    values = [value.encode() for value in settings.values()]
    strings = ctypes.c_char_p * len(names)
    library.MXDataIterCreateIter(None, ctypes.c_uint(len(names)), strings(*names), strings(*values), None)


def test_a_reader_reads_its_part(asked: ASKED) -> None:
    library = Library()
    hook.install(library)
    create(library, path_imgrec="s3://b/train/", num_parts="3", part_index="1", mean_img="mean.bin")
    assert asked == [("s3://b/train/", (1, 3), 0)]
    assert library.called == [
        {b"path_imgrec": b"/local/b/train/", b"num_parts": b"3", b"part_index": b"1", b"mean_img": b"mean.bin"}
    ]


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"path_imgrec": "s3://b/a.rec"}, [("s3://b/a.rec", (0, 1), 0)]),
        ({"path_imgrec": "a.rec;s3://b/a.rec"}, [("a.rec;s3://b/a.rec", (0, 1), 0)]),
        ({"path_imgrec": "s3://b/", "shuffle_chunk_size": "8"}, [("s3://b/", (0, 1), 8)]),
        ({"path_imgrec": "s3://b/", "path_imgidx": "i", "num_parts": "2"}, [("s3://b/", None, 0)]),
        ({"image": "s3://b/i", "label": "s3://b/l"}, [("s3://b/i", None, 0), ("s3://b/l", None, 0)]),
        ({"path_imgrec": "a.rec", "num_parts": "2"}, []),
    ],
)
def test_orders_of_readers(asked: ASKED, settings: dict[str, str], wanted: ASKED) -> None:
    library = Library()
    hook.install(library)
    create(library, **settings)
    assert asked == wanted


def test_records_by_name(asked: ASKED) -> None:
    library: Any = Library()
    hook.install(library)
    for uri in (ctypes.c_char_p(b"s3://b/a.rec"), b"s3://b/a.rec", ctypes.c_char_p(b"a.rec")):
        library.MXRecordIOReaderCreate(uri, None)
    assert library.called == [b"/local/b/a.rec", b"/local/b/a.rec", b"a.rec"]
    assert len(asked) == 2


def test_other_files_are_opened_normally(asked: ASKED, tmp_path: Path) -> None:
    (tmp_path / "a.idx").write_text("0\t0\n")
    with hook.make_open(is_data=True)(str(tmp_path / "a.idx")) as stream:
        assert stream.read() == "0\t0\n"
    assert asked == []


# -- writing -----------------------------------------------------------------------------------------------------------

URL = "s3://b/net-symbol.json"


class MXNetError(Exception):
    """Like the exception of mxnet.base."""


@pytest.fixture
def uploaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The uploaded contents by URL. Files are written below tmp_path / "drafts"."""
    objects: dict[str, str] = {}
    drafts = tmp_path / "drafts"
    drafts.mkdir()

    def upload(path: str, url: str) -> None:
        objects[url] = Path(path).read_text()
        Path(path).unlink()

    monkeypatch.setitem(sys.modules, "mxnet.base", cast("ModuleType", SimpleNamespace(MXNetError=MXNetError)))
    monkeypatch.setattr(hook.STAGE, "begin_file", lambda _: str(drafts / f"draft-{len(os.listdir(drafts))}"))
    monkeypatch.setattr(hook.STAGE, "upload", upload)
    monkeypatch.setattr(hook.STAGE, "unfinished", {})
    return objects


def left(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "drafts").iterdir())


def test_a_written_file_is_uploaded(uploaded: dict[str, str], tmp_path: Path) -> None:
    library = Library()
    hook.install(library)
    name = ctypes.c_char_p(str(tmp_path / "plain").encode())
    assert library.MXSymbolSaveToFile(None, name) == 0
    assert uploaded == {}
    assert library.MXSymbolSaveToFile(None, ctypes.c_char_p(URL.encode())) == 0
    assert uploaded == {URL: "a symbol"}


def test_a_file_that_mxnet_cannot_write_is_not_uploaded(uploaded: dict[str, str], tmp_path: Path) -> None:
    library = Library(code=-1)
    hook.install(library)
    with pytest.raises(MXNetError, match=f"{URL} was not saved: MXNet's own message"):
        library.MXSymbolSaveToFile(None, ctypes.c_char_p(URL.encode()))
    assert (uploaded, left(tmp_path)) == ({}, [])


def write_records(library: Library, url: str = "s3://b/a.rec") -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    library.MXRecordIOWriterCreate(ctypes.c_char_p(url.encode()), ctypes.byref(handle))
    return handle


def test_records_are_uploaded_when_their_writer_is_closed(uploaded: dict[str, str], tmp_path: Path) -> None:
    library = Library()
    hook.install(library)
    handle = write_records(library)
    assert uploaded == {}
    assert library.MXRecordIOWriterFree(handle) == 0
    assert uploaded == {"s3://b/a.rec": "records"}
    assert library.MXRecordIOWriterFree(write_records(library, str(tmp_path / "local.rec"))) == 0
    assert (library.freed, left(tmp_path)) == ([77, 77], [])


def test_a_fork_does_not_upload_its_parents_files(uploaded: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    hook.install(library)
    handle = write_records(library)
    states = hook.make_open(is_data=False)("s3://b/states", "w")
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        hook._finish()
        states.close()
        library.MXRecordIOWriterFree(handle)
        assert uploaded == {}
    hook._finish()
    assert set(uploaded) == {"s3://b/a.rec", "s3://b/states"}


def test_unclosed_files_are_uploaded_at_the_end(uploaded: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    hook.install(library)
    handle = write_records(library)
    monkeypatch.setattr(sys, "last_type", ValueError, raising=False)
    hook._finish()
    assert uploaded == {}  # the program failed, so its file is incomplete
    monkeypatch.delattr(sys, "last_type")
    hook._finish()
    assert uploaded == {"s3://b/a.rec": "records"}
    assert library.MXRecordIOWriterFree(handle) == 0  # by MXRecordIO.__del__
    assert library.freed == [77]


def test_pythons_files_are_uploaded_when_they_are_closed(uploaded: dict[str, str], tmp_path: Path) -> None:
    open_ = hook.make_open(is_data=False)
    with open_("s3://b/states", "w") as stream:
        stream.write("content")
        assert uploaded == {}
    stream.close()
    assert uploaded == {"s3://b/states": "content"}
    with pytest.raises(ZeroDivisionError), open_("s3://b/half", "w") as stream:
        stream.write(str(1 // 0))
    with pytest.raises(ValueError, match='mode "a": an object of S3 can only be read, or written as a whole'):
        open_("s3://b/states", "a")
    assert (list(uploaded), left(tmp_path)) == (["s3://b/states"], [])


@pytest.mark.parametrize(
    ("uri", "covers"),
    [
        ("s3://b/d/a.rec", True),
        ("s3://b/d/", True),
        ("s3://b/d", True),  # the name of a folder, or of a pattern
        ("s3://b/other/;s3://b/d/x.rec#cache", True),
        ("s3://b/other/", False),
        ("s3://b/d2/a.rec", False),
    ],
)
def test_covers(uri: str, covers: bool) -> None:  # noqa: FBT001 - a column of the table
    assert hook.covers(uri, "s3://b/d/a.rec") == covers


@pytest.mark.parametrize("role", ["worker", None])
def test_the_import_of_mxnet_loads_the_hook(tmp_path: Path, role: str | None) -> None:
    """bootstrap's _cluster_compat loads it, in a worker of a distributed job and in the only worker of a job."""
    files = {
        "numpy.py": "",
        "mxnet/__init__.py": "print('mxnet'); from . import base, kvstore",
        "mxnet/base.py": "_LIB = 'its library'",
        "mxnet/kvstore.py": "",
        "mxnet/nd.py": "def waitall(): pass",
        "hook.py": "def begin(): print('begin')\ndef install(library): print('install', library)",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    env = {
        "PYTHONPATH": f"{tmp_path}:{REPOSITORY / 'node' / 'setup' / 'startup'}",
        "CLUSTER_MXNET_HOOK": f"{tmp_path}/hook.py",
    }
    env |= {"DMLC_ROLE": role} if role else {}
    code = "import _cluster_compat, mxnet, mxnet.nd"
    done = subprocess.run([sys.executable, "-S", "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["begin", "mxnet", "install its library"]
    assert done.stderr == ""
