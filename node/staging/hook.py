"""Gives MXNet local files instead of s3:// URLs, for reading and for writing, from inside a worker's Python.

`begin` is called before MXNet is imported, `install` after mxnet.base is. MXNet opens files with a few functions of its
C API, and with Python's open() in a few of its modules. Both get local paths: stage.py fetches a file before it is
read, and uploads a file once it is complete. A reader's part of the data is known only when the reader is created: the
kv-store assigns the ranks.

It is loaded by its path, perhaps into another Python than the environment's, and so imports only the standard library.
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

# The C functions that read the file named by their first argument.
READ_DATA = ("MXRecordIOReaderCreate",)
READ_MODEL = ("MXNDArrayLoad", "MXSymbolCreateFromFile")
# Those that take the keys and values of a reader.
BY_KEYS = ("MXDataIterCreateIter", "MXDatasetCreateDataset")
# Those that write a file, with the position of its name.
WRITE = {"MXNDArraySave": 0, "MXSymbolSaveToFile": 1}
RECORDS, INDEX = "path_imgrec", "path_imgidx"
# The modules of MXNet that call open(); True: to read data, False: a model's or optimizer's state.
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
    """stage.py, running for this process. Its methods raise MXNetError.

    unfinished: functions that upload the files that are still being written, by process and file: a forked process
    must not upload those of its parent.
    """

    def __init__(self) -> None:
        self.unfinished: Dict[Tuple[int, int], Callable[[], None]] = {}
        self._owner: Optional[int] = None
        self._lock = threading.Lock()
        self._child: Any = None
        self._known: Dict[Key, str] = {}
        self._number = 0

    def begin(self) -> None:
        """Starts stage.py for this process; a forked process gets its own."""
        if self._owner == os.getpid():
            return
        self._owner, self._lock = os.getpid(), threading.Lock()
        programs = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        words = [os.environ.get("CLUSTER_PYTHON", sys.executable), "-Es", programs, "stage"]
        self._child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, universal_newlines=True)

    def find(self, uri: str, part: Optional[Tuple[int, int]] = None, shuffle_mib: int = 0) -> str:
        """Returns the local path or paths for a URI of data; they stay the same until this process writes there."""
        self.begin()
        with self._lock:
            key = (uri, part, shuffle_mib)
            if key not in self._known:
                self._known[key] = self._ask({"uri": uri, "part": part, "shuffle_mib": shuffle_mib})
            return self._known[key]

    def find_newest(self, url: str) -> str:
        """Returns the local path of the current version of an object that jobs overwrite, such as a checkpoint."""
        self.begin()
        with self._lock:
            return self._ask({"object": url})

    @contextlib.contextmanager
    def saving(self, url: str) -> Iterator[str]:
        """Yields a local path to write to. The file is uploaded at the end of the block, unless the block raises."""
        path = self.begin_file(url)
        try:
            yield path
        except BaseException:
            discard(path)
            raise
        self.upload(path, url)

    def begin_file(self, url: str) -> str:
        """Returns a local path to write an object's content to, for `upload`."""
        self.begin()
        with self._lock:
            return self._ask({"draft": url})

    def upload(self, path: str, url: str) -> None:
        """Uploads a complete file, which S3 verifies, and removes it from this host."""
        with self._lock:
            self._ask({"upload": path, "to": url})
            self._known = {key: found for key, found in self._known.items() if not covers(key[0], url)}

    def _ask(self, order: Dict[str, Any]) -> str:
        self._number += 1
        try:
            self._child.stdin.write(json.dumps(dict(order, number=self._number)) + "\n")
            self._child.stdin.flush()
            answer: Dict[str, Any] = {}
            while answer.get("number") != self._number:  # Ctrl-C may have left an earlier answer unread
                answer = json.loads(self._child.stdout.readline())
        except (OSError, ValueError):  # ValueError: the pipe is closed, or there was no line
            answer = {"error": f"stage.py, which reads and writes s3://, ended with code {self._child.wait()}"}
        if "error" in answer:
            raise make_error(answer["error"], is_missing=answer.get("is_missing", False))
        return str(answer["path"])


STAGE = Stage()


class Opening:
    """An importer that gives OPENING's modules an open() that also accepts s3:// URLs."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG004 - as importlib calls it
        """Finds a module, as importlib.abc.MetaPathFinder does."""
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
    """A Python file that is uploaded when it is closed, unless its `with` block raises."""

    def __init__(self, url: str, mode: str, *others: Any, **options: Any) -> None:
        self._url = url
        self._path = STAGE.begin_file(url)
        self._file = builtins.open(self._path, mode, *others, **options)  # noqa: SIM115 - this object's owner closes it
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
        """Uploads the file, once."""
        if self._is_unfinished():
            try:
                self._file.close()
            except OSError:  # such as a full disk
                discard(self._path)
                raise
            STAGE.upload(self._path, self._url)


def begin() -> None:
    """Starts to prefetch the data that this process will probably read, and installs the importer."""
    STAGE.begin()
    sys.meta_path.insert(sys.meta_path.index(importlib.machinery.PathFinder), Opening)


def install(library: Any) -> None:
    """Wraps the functions that open files in MXNet's C library, a ctypes.CDLL."""
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
    """Wraps the writer of record files. A file is written by many calls, and is complete when its writer is freed."""
    create, free = library.MXRecordIOWriterCreate, library.MXRecordIOWriterFree
    freed = set()

    def call_create(name: Any, handle: Any) -> Any:
        url = _text(name)
        path = STAGE.begin_file(url) if url.startswith("s3://") else None
        code = create(name if path is None else ctypes.c_char_p(path.encode("utf-8")), handle)
        if code == 0:
            number = handle._obj.value  # noqa: SLF001 - the way to read a ctypes.byref
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
    """Uploads the files that the program did not close before its end, as Python then closes other files.

    Does nothing if the program failed, because the files are incomplete. If an upload fails, the program fails.
    """
    if getattr(sys, "last_type", None) is not None:
        return
    own = [key for key in STAGE.unfinished if key[0] == os.getpid()]
    try:
        for key in own:
            STAGE.unfinished[key]()
    except Exception:  # noqa: BLE001 - after any error, the program has not saved what it wrote
        sys.excepthook(*sys.exc_info())
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def find_local(given: Sequence[Tuple[str, str]], find: Callable[..., str]) -> List[str]:
    """Returns the values of a reader's (key, value) arguments, with local paths instead of s3:// URLs."""
    settings = dict(given)
    part: Optional[Tuple[int, int]] = None
    shuffle_mib = 0
    if not settings.get(INDEX):  # with an index, the reader divides the data by it
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
    """Whether an object may be among those of a URI: an object, a folder or a pattern, or several, separated by ;."""
    return any(url.startswith(piece.rpartition("/")[0] + "/") for piece in uri.partition("#")[0].split(";"))


def make_open(*, is_data: bool) -> Function:
    """Returns an open() that also accepts s3:// URLs. is_data: it reads data, which does not change during a job."""

    def open_(path: Any, mode: str = "r", *others: Any, **options: Any) -> Any:
        if not isinstance(path, str) or not path.startswith("s3://"):
            return builtins.open(path, mode, *others, **options)
        if "+" in mode or mode[0] not in "rw":
            raise ValueError(f'{path}: mode "{mode}": an object of S3 can only be read, or written as a whole')
        if mode[0] == "w":
            return WrittenFile(path, mode, *others, **options)
        local = STAGE.find(path) if is_data else STAGE.find_newest(path)
        return builtins.open(local, mode, *others, **options)

    return open_


def make_error(words: str, *, is_missing: bool = False) -> Exception:
    """Returns an MXNetError with this message; an OSError in a program without MXNet. is_missing: an object is."""
    library: Any = sys.modules.get("mxnet.base")
    error: Any = OSError(words) if library is None else library.MXNetError(words)
    error.is_missing = is_missing
    return error  # type: ignore[no-any-return]


def discard(path: str) -> None:
    """Removes an incomplete file."""
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)


def _is_remote(value: str) -> bool:
    return value.startswith("s3://") or ";s3://" in value


def _text(name: Any) -> str:
    value = name.value if isinstance(name, ctypes.c_char_p) else name
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
