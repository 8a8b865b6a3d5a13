"""What stage_hook.py puts before MXNet's readers; that MXNet reads so is shown on nodes, in tests/sandbox."""

import ctypes
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from project import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "train" / "node"))  # by path, as on the nodes
import stage_hook

ASKED = list[tuple[str, Any, int]]


class Library:
    """MXNet's C library, as far as it reads."""

    def __init__(self) -> None:
        self.called: list[Any] = []

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

    monkeypatch.setattr(stage_hook.STAGE, "find", find)
    return seen


def create(library: Any, **settings: str) -> None:
    names = [name.encode() for name in settings]
    values = [value.encode() for value in settings.values()]
    strings = ctypes.c_char_p * len(names)
    library.MXDataIterCreateIter(None, ctypes.c_uint(len(names)), strings(*names), strings(*values), None)


def test_a_reader_gets_its_part(asked: ASKED) -> None:
    library = Library()
    stage_hook.install(library)
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
def test_what_is_asked_for(asked: ASKED, settings: dict[str, str], wanted: ASKED) -> None:
    library = Library()
    stage_hook.install(library)
    create(library, **settings)
    assert asked == wanted


def test_records_by_name(asked: ASKED) -> None:
    library: Any = Library()
    stage_hook.install(library)
    for uri in (ctypes.c_char_p(b"s3://b/a.rec"), b"s3://b/a.rec", ctypes.c_char_p(b"a.rec")):
        library.MXRecordIOReaderCreate(uri, None)
    assert library.called == [b"/local/b/a.rec", b"/local/b/a.rec", b"a.rec"]
    assert len(asked) == 2


def test_one_that_was_not_asked_of_the_store_is_opened_as_it_is(asked: ASKED, tmp_path: Any) -> None:
    (tmp_path / "a.idx").write_text("0\t0\n")
    with stage_hook._open(str(tmp_path / "a.idx")) as stream:
        assert stream.read() == "0\t0\n"
    assert asked == []


@pytest.mark.parametrize("role", ["worker", None])
def test_it_is_loaded_when_mxnet_is_imported(tmp_path: Path, role: str | None) -> None:
    """By bootstrap's _cluster_compat, in a worker of a distributed job and in one that has no others."""
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
    env = {"PYTHONPATH": f"{tmp_path}:{REPOSITORY / 'bootstrap' / 'node'}", "CLUSTER_MXNET_HOOK": f"{tmp_path}/hook.py"}
    env |= {"DMLC_ROLE": role} if role else {}
    code = "import _cluster_compat, mxnet, mxnet.nd"
    done = subprocess.run([sys.executable, "-S", "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["begin", "mxnet", "install its library"]
    assert done.stderr == ""
