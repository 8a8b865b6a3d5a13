"""Gives MXNet local files in place of s3:// URLs, for reading and for writing: loaded into a worker's Python.

`begin` is called when MXNet is about to be imported, `install` once mxnet.base is. MXNet opens files by a few functions
of its C API, and by Python's open() in a few of its modules. Both get local paths: stage.py fetches a file before it is
read, and uploads a file once it is complete. The part of the data that a reader is to have is known when the reader is
made, and not before: ranks are given when the kv-store is made.

It is loaded by its path, and may be in another Python than the environment's: standard library alone, nothing of ours.
"""

import atexit
import builtins
import contextlib
import ctypes
import functools
import importlib.machinery
import json
import os
import subprocess
import sys
import threading
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

Key = Tuple[str, Optional[Tuple[int, int]], int]
Function = Callable[..., Any]

# The C functions that read the file that their first argument names.
READ_DATA = ("MXRecordIOReaderCreate",)
READ_MODEL = ("MXNDArrayLoad", "MXSymbolCreateFromFile")
# Those that take keys and values of a reader.
BY_KEYS = ("MXDataIterCreateIter", "MXDatasetCreateDataset")
# Those that write a file, and which argument names it.
WRITE = {"MXNDArraySave": 0, "MXSymbolSaveToFile": 1}
RECORDS, INDEX = "path_imgrec", "path_imgidx"
# The modules of MXNet that call open(), and whether they read data by it. Else it is a model's or optimizer's state.
OPENING = {
    "mxnet.gluon.block": False,
    "mxnet.gluon.trainer": False,
    "mxnet.image.image": True,
    "mxnet.kvstore": False,
    "mxnet.kvstore.kvstore": False,
    "mxnet.module.module": False,
    "mxnet.recordio": True,
}


class Stage:
    """stage.py, at work for this process. Its methods raise MXNetError.

    unfinished: files that are being written and have not been uploaded, as functions that do it, by process and file:
    those of the process that this one was forked from are not its own.
    """

    def __init__(self) -> None:
        self.unfinished: Dict[Tuple[int, int], Callable[[], None]] = {}
        self._owner: Optional[int] = None
        self._lock = threading.Lock()
        self._child: Any = None
        self._known: Dict[Key, str] = {}
        self._number = 0

    def begin(self) -> None:
        """Start it, for this process; one that was forked from another has its own."""
        if self._owner == os.getpid():
            return
        self._owner, self._lock = os.getpid(), threading.Lock()
        programs = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        words = [os.environ.get("CLUSTER_PYTHON", sys.executable), "-Es", programs, "stage"]
        self._child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, universal_newlines=True)

    def find(self, uri: str, part: Optional[Tuple[int, int]] = None, shuffle_mib: int = 0) -> str:
        """The local path, or paths, for a URI of data; the same ones until this process writes there, or ends."""
        self.begin()
        with self._lock:
            key = (uri, part, shuffle_mib)
            if key not in self._known:
                self._known[key] = self._ask({"uri": uri, "part": part, "shuffle_mib": shuffle_mib})
            return self._known[key]

    def find_newest(self, url: str) -> str:
        """The local path of an object as it is in S3 now: for what jobs overwrite, such as checkpoints."""
        self.begin()
        with self._lock:
            return self._ask({"object": url})

    @contextlib.contextmanager
    def saving(self, url: str) -> Iterator[str]:
        """A local path to write to; its file is uploaded at the end of the block, unless that is left by an error."""
        path = self.begin_file(url)
        try:
            yield path
        except BaseException:
            discard(path)
            raise
        self.upload(path, url)

    def begin_file(self, url: str) -> str:
        """A local path to write an object's content to, for `upload`."""
        self.begin()
        with self._lock:
            return self._ask({"draft": url})

    def upload(self, path: str, url: str) -> None:
        """Put a complete file to S3, whole and verified, and remove it here."""
        with self._lock:
            self._ask({"upload": path, "to": url})
            self._known = {key: found for key, found in self._known.items() if not covers(key[0], url)}

    def _ask(self, order: Dict[str, Any]) -> str:
        self._number += 1
        try:
            self._child.stdin.write(json.dumps(dict(order, number=self._number)) + "\n")
            self._child.stdin.flush()
            told: Dict[str, Any] = {}
            while told.get("number") != self._number:  # Ctrl-C may have left the answer to an earlier order unread
                told = json.loads(self._child.stdout.readline())
        except (OSError, ValueError):  # ValueError: the pipe is closed, or there was no line
            told = {"error": f"stage.py, which reads and writes s3://, ended with code {self._child.wait()}"}
        if "error" in told:
            raise make_error(told["error"])
        return str(told["path"])


STAGE = Stage()


class Opening:
    """An importer that gives OPENING's modules an open() that takes s3:// URLs, too."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG004 - as they are called
        """As importers have it."""
        if name not in OPENING:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: Any) -> None:
                module.open = make_open(is_data=OPENING[name])
                execute(module)

            loader.exec_module = exec_module
        return spec


class WrittenFile:
    """A file of Python's that is uploaded when it is closed, unless its `with` block is left by an error."""

    def __init__(self, url: str, mode: str, *others: Any, **options: Any) -> None:
        self._url = url
        self._path = STAGE.begin_file(url)
        self._file = builtins.open(self._path, mode, *others, **options)  # noqa: SIM115 - who has this object closes it
        self._key = os.getpid(), id(self)
        STAGE.unfinished[self._key] = self.close

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self.close()
        elif self._is_unfinished():
            self._file.close()
            discard(self._path)

    def _is_unfinished(self) -> bool:
        return self._key[0] == os.getpid() and STAGE.unfinished.pop(self._key, None) is not None

    def close(self) -> None:
        """Upload it, once."""
        if self._is_unfinished():
            try:
                self._file.close()
            except OSError:  # the disk is full, say
                discard(self._path)
                raise
            STAGE.upload(self._path, self._url)


def begin() -> None:
    """Begin to fetch what this process will probably read."""
    STAGE.begin()
    sys.meta_path.insert(sys.meta_path.index(importlib.machinery.PathFinder), Opening)


def install(library: Any) -> None:
    """Put ourselves before the functions of MXNet's C library, a ctypes.CDLL, that open files."""
    wrappers = {name: functools.partial(_wrap_read, STAGE.find) for name in READ_DATA}
    wrappers.update({name: functools.partial(_wrap_read, STAGE.find_newest) for name in READ_MODEL})
    wrappers.update({name: functools.partial(_wrap_by_keys, STAGE.find) for name in BY_KEYS})
    wrappers.update({name: functools.partial(_wrap_write, library, position) for name, position in WRITE.items()})
    for name, wrap in wrappers.items():
        if hasattr(library, name):
            setattr(library, name, wrap(getattr(library, name)))
    if hasattr(library, "MXRecordIOWriterCreate"):
        _wrap_record_writer(library)
    atexit.register(_finish)


def _wrap_read(find: Callable[[str], str], function: Function) -> Function:
    def call(name: Any, *others: Any) -> Any:
        url = _text(name)
        if url.startswith("s3://"):
            name = ctypes.c_char_p(find(url).encode("utf-8"))
        return function(name, *others)

    return call


def _wrap_by_keys(find: Callable[..., str], function: Function) -> Function:
    def call(handle: Any, count: Any, keys: Any, values: Any, *others: Any) -> Any:
        number = getattr(count, "value", count)
        given = [(keys[at].decode("utf-8"), values[at].decode("utf-8")) for at in range(number)]
        if any(_is_remote(value) for _, value in given):
            local = [value.encode("utf-8") for value in find_local(given, find)]
            values = (ctypes.c_char_p * number)(*local)
        return function(handle, count, keys, values, *others)

    return call


def _wrap_write(library: Any, position: int, function: Function) -> Function:
    def call(*arguments: Any) -> Any:
        url = _text(arguments[position])
        if not url.startswith("s3://"):
            return function(*arguments)
        with STAGE.saving(url) as path:
            given = list(arguments)
            given[position] = ctypes.c_char_p(path.encode("utf-8"))
            if function(*given) != 0:
                raise make_error(f"{url} was not saved: {_text(library.MXGetLastError())}")
        return 0

    return call


def _wrap_record_writer(library: Any) -> None:
    """A record file is written by many calls, and complete when its writer is freed."""
    create, free = library.MXRecordIOWriterCreate, library.MXRecordIOWriterFree
    freed = set()

    def call_create(name: Any, handle: Any) -> Any:
        url = _text(name)
        path = STAGE.begin_file(url) if url.startswith("s3://") else None
        code = create(name if path is None else ctypes.c_char_p(path.encode("utf-8")), handle)
        if code == 0:
            number = handle._obj.value  # noqa: SLF001 - that is how a ctypes.byref is read
            freed.discard(number)
            if path is not None:
                STAGE.unfinished[os.getpid(), number] = lambda: finish(number, path, url)
        return code

    def finish(number: int, path: str, url: str) -> None:
        STAGE.unfinished.pop((os.getpid(), number), None)
        freed.add(number)
        if free(ctypes.c_void_p(number)) != 0:
            discard(path)
            raise make_error(f"{url} was not saved: {_text(library.MXGetLastError())}")
        STAGE.upload(path, url)

    def call_free(handle: Any) -> Any:
        number = getattr(handle, "value", handle)
        complete = STAGE.unfinished.get((os.getpid(), number))
        if complete is not None:
            complete()
            return 0
        return 0 if number in freed else free(handle)  # one that _finish has freed

    library.MXRecordIOWriterCreate, library.MXRecordIOWriterFree = call_create, call_free


def _finish() -> None:
    """At the end of the program, upload the files that it has not closed, as Python closes others.

    A program that failed has not completed them. What cannot be uploaded lets the program fail.
    """
    if getattr(sys, "last_type", None) is not None:
        return
    own = [key for key in STAGE.unfinished if key[0] == os.getpid()]
    try:
        for key in own:
            STAGE.unfinished[key]()
    except Exception:  # noqa: BLE001 - whatever it is, the program has not saved what it wrote
        sys.excepthook(*sys.exc_info())
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def find_local(given: Sequence[Tuple[str, str]], find: Callable[..., str]) -> List[str]:
    """The values of a reader's arguments, (key, value) as text, with paths in place of s3:// URLs."""
    settings = dict(given)
    part: Optional[Tuple[int, int]] = None
    shuffle_mib = 0
    if not settings.get(INDEX):  # by which the data would be cut otherwise
        part = (int(settings.get("part_index", 0)), int(settings.get("num_parts", 1)))
        shuffle_mib = int(settings.get("shuffle_chunk_size", 0))
    found = []
    for key, value in given:
        if not _is_remote(value):
            found.append(value)
        elif key == RECORDS:
            found.append(find(value, part, shuffle_mib))
        else:
            found.append(find(value))
    return found


def covers(uri: str, url: str) -> bool:
    """Whether an object may be among those that a URI names: one, a folder's or those of a pattern, with ; between."""
    return any(url.startswith(piece.rpartition("/")[0] + "/") for piece in uri.partition("#")[0].split(";"))


def make_open(*, is_data: bool) -> Function:
    """An open() that takes s3:// URLs, too. is_data: what it reads is data, which stays the same during a job."""

    def open_(path: Any, mode: str = "r", *others: Any, **options: Any) -> Any:
        if not isinstance(path, str) or not path.startswith("s3://"):
            return builtins.open(path, mode, *others, **options)
        if "+" in mode or mode[0] not in "rw":
            raise ValueError(f'{path}: mode "{mode}": an object of S3 is read, or written as a whole')
        if mode[0] == "w":
            return WrittenFile(path, mode, *others, **options)
        local = STAGE.find(path) if is_data else STAGE.find_newest(path)
        return builtins.open(local, mode, *others, **options)

    return open_


def make_error(words: str) -> Exception:
    """The error that MXNet itself raises."""
    error: Exception = sys.modules["mxnet.base"].MXNetError(words)
    return error


def discard(path: str) -> None:
    """Remove a file that has not become complete."""
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)


def _is_remote(value: str) -> bool:
    return value.startswith("s3://") or ";s3://" in value


def _text(name: Any) -> str:
    value = name.value if isinstance(name, ctypes.c_char_p) else name
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
