"""Gives MXNet's readers local files for s3:// URLs, which stage.py fetches: loaded into a worker's Python.

`begin` is called when MXNet is about to be imported, `install` once mxnet.base is. All readers, of Python and of C++,
open what they read by a few functions of MXNet's C API: those are called with paths in place of the URLs. The part of
the data that a reader is to have is known at that moment, and not before: ranks are given when the kv-store is made.
Python 3.6 and later, standard library only.
"""

import builtins
import ctypes
import json
import os
import subprocess
import sys
import threading

# The C functions that read what their first argument names, and those that take keys and values of a reader.
BY_NAME = ("MXRecordIOReaderCreate", "MXNDArrayLoad", "MXSymbolCreateFromFile")
BY_KEYS = ("MXDataIterCreateIter", "MXDatasetCreateDataset")
RECORDS, INDEX = "path_imgrec", "path_imgidx"


class Stage(object):
    """stage.py, at work for this process."""

    def __init__(self):
        self._owner = None
        self._lock = None
        self._child = None
        self._known = {}

    def begin(self):
        """Start it, for this process; one that was forked from another has its own."""
        if self._owner == os.getpid():
            return
        self._owner, self._lock = os.getpid(), threading.Lock()
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "stage.py")
        words = [sys.executable, "-S", "-E", program]
        self._child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, universal_newlines=True)

    def find(self, uri, part=None, shuffle_mib=0):
        """The local path, or paths, for a URI; the same ones for as long as this process lives. Raises MXNetError."""
        self.begin()
        with self._lock:
            key = (uri, part, shuffle_mib)
            if key not in self._known:
                self._known[key] = self._ask({"uri": uri, "part": part, "shuffle_mib": shuffle_mib})
            return self._known[key]

    def _ask(self, order):
        try:
            self._child.stdin.write(json.dumps(order) + "\n")
            self._child.stdin.flush()
            line = self._child.stdout.readline()
        except (OSError, ValueError):  # ValueError: the pipe is closed
            line = ""
        if not line:
            told = {"error": "stage.py, which stages the data, ended with code %s" % self._child.wait()}
        else:
            told = json.loads(line)
        if "error" in told:
            raise sys.modules["mxnet.base"].MXNetError(told["error"])
        return told["path"]


STAGE = Stage()


def begin():
    """Begin to fetch what this process will probably read."""
    STAGE.begin()


def install(library):
    """Put ourselves before the readers of MXNet's C library, a ctypes.CDLL."""
    for names, wrap in ((BY_NAME, _wrap_by_name), (BY_KEYS, _wrap_by_keys)):
        for name in names:
            if hasattr(library, name):
                setattr(library, name, wrap(getattr(library, name)))


def _wrap_by_name(function):
    def call(name, *others):
        recordio = sys.modules.get("mxnet.recordio")
        if recordio is not None:
            recordio.open = _open  # for MXIndexedRecordIO's index, which it reads by itself
        text = name.value if isinstance(name, ctypes.c_char_p) else name
        if isinstance(text, bytes) and text.startswith(b"s3://"):
            name = ctypes.c_char_p(STAGE.find(text.decode("utf-8")).encode("utf-8"))
        return function(name, *others)

    return call


def _wrap_by_keys(function):
    def call(handle, count, keys, values, *others):
        number = getattr(count, "value", count)
        given = [(keys[at].decode("utf-8"), values[at].decode("utf-8")) for at in range(number)]
        if any(_is_remote(value) for _, value in given):
            local = [value.encode("utf-8") for value in find_local(given, STAGE.find)]
            values = (ctypes.c_char_p * number)(*local)
        return function(handle, count, keys, values, *others)

    return call


def find_local(given, find):
    """The values of a reader's arguments, (key, value) as text, with paths in place of s3:// URLs."""
    settings = dict(given)
    part, shuffle_mib = None, 0
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


def _is_remote(value):
    return value.startswith("s3://") or ";s3://" in value


def _open(path, mode="r", *others, **options):
    """As the built-in one, for s3:// too."""
    if isinstance(path, str) and path.startswith("s3://") and mode.startswith("r"):
        path = STAGE.find(path)
    return builtins.open(path, mode, *others, **options)
