"""Stages data of S3 on this node for one process of a job, and uploads the files that it saves; hook.py starts it.

    {"number": 1, "uri": "s3://bucket/train/", "part": [index, count] or null, "shuffle_mib": 0}    data for a reader
    {"number": 2, "object": "s3://bucket/net-0001.params"}      the current version of a file
    {"number": 3, "draft": "s3://bucket/net-0002.params"}       a path to write a new file's content to
    {"number": 4, "upload": "/...", "to": "s3://bucket/net-0002.params"}

    {"number": 1, "path": "/.../a.rec;/.../b.rec"} or {"number": 1, "error": "..."}

Each is one line, over stdin and stdout; messages for the user go to stderr. The program ends when its stdin does, that
is, with the process that it serves, and protects that process's data until then.
"""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Optional, Tuple

import msgspec

from foundation.decode import decode
from node.staging import cache, fetch, plan, s3

TELL_EVERY_S = 5.0
TOLD_S = 1.0  # staging that took less is not reported
TRIAL_BYTES = 1 << 16  # more than the unwritten end of a file can be


class Gone(Exception):
    """The process that this one serves has ended."""


class Missing(fetch.StageError):
    """There is nothing to read at a URI."""


class Order(msgspec.Struct, frozen=True):
    """A request of the process: one of uri, object, draft and upload, as described in the module's docstring."""

    number: int
    uri: str = ""
    part: Optional[Tuple[int, int]] = None
    shuffle_mib: int = 0
    object: str = ""
    draft: str = ""
    upload: str = ""
    to: str = ""


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The requested path, or the reason why there is none."""

    number: int
    path: Optional[str] = None
    error: Optional[str] = None
    is_missing: bool = False  # there is no such object


class Stager:
    """Carries out orders. env: the environment of the job's process."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self._store = s3.Store(env)
        folder = cache.find_folder(env)
        limit = cache.find_limit(env, folder, cache.find_held(folder))
        self.cache = cache.Cache(folder, limit)
        self._fetcher = fetch.Fetcher(self._store, self.cache, say)

    def stop(self) -> None:
        """Stops fetching, and removes incomplete files."""
        self._fetcher.stop()
        self.cache.close()

    def carry_out(self, order: Order) -> str:
        """Carries out an order and returns the path that answers it. Raises StageError, OSError, ValueError, Gone."""
        if order.upload:
            self.upload(order.upload, order.to)
            return order.to
        if order.draft:
            return self.cache.find_draft(order.draft)
        if order.object:
            return self.stage_object(order.object)
        return self.stage(order.uri, order.part, order.shuffle_mib)

    def stage(self, uri: str, part: tuple[int, int] | None, shuffle_mib: int) -> str:
        """Returns the local path or paths for a reader's URI. Raises the errors of `carry_out`."""
        row: list[s3.Entry | str] = []
        for piece in filter(None, uri.partition("#")[0].split(";")):
            row += self._expand(piece) if piece.startswith("s3://") else [piece]
        wanted = [one for one in row if isinstance(one, s3.Entry)]
        if part is not None and len(wanted) == len(row):
            touched = plan.find_touched([entry.size_bytes for entry in wanted], *part, shuffle_mib=shuffle_mib)
            wanted = [wanted[at] for at in touched]
        self.cache.use(wanted)
        places = {item.entry.url: item.path for item in self._fetch(wanted)}
        return ";".join(
            (places.get(one.url) or self.cache.find_hole(one.size_bytes)) if isinstance(one, s3.Entry) else one
            for one in row
        )

    def stage_object(self, url: str) -> str:
        """Returns the local path of the current version of an object. Raises the errors of `carry_out`."""
        entry = self._store.find(url)
        if entry is None:
            raise nothing_to_read(url, where=url.rpartition("/")[0])
        self.cache.use([entry])
        return str(self._fetch([entry])[0].path)

    def upload(self, path: str, url: str) -> None:
        """Uploads a file, which S3 verifies, and removes it from this host. Raises OSError, ValueError."""
        try:
            check_room(os.path.dirname(path))
            self._store.put_file(path, url)
        finally:
            os.remove(path)

    def _fetch(self, wanted: Sequence[s3.Entry]) -> list[fetch.Item]:
        items = self._fetcher.want(wanted, fetch.NOW)
        progress = Progress(self._fetcher, items)
        fetch.wait(self._fetcher, items, progress.tick)
        errors = [item.error for item in items if item.error]
        if errors:
            raise fetch.StageError(fetch.explain(errors[0], self.cache.folder))
        progress.finish()
        return items

    def _expand(self, uri: str) -> list[s3.Entry]:
        """Returns the objects that MXNet reads for a URI, in order: one object, or those of a folder or a pattern."""
        bucket, key = s3.split_url(uri)
        if key and not key.endswith("/"):
            entry = self._store.find(uri)
            if entry is not None:
                return [entry]
        folder = [entry for entry in self._store.list(uri, below=False) if entry.size_bytes]
        if not folder and key and not key.endswith("/"):
            siblings = self._store.list(uri.rpartition("/")[0], below=False)
            pattern, begin = re.compile(key), len(f"s3://{bucket}/")
            folder = [entry for entry in siblings if entry.size_bytes and pattern.fullmatch(entry.url[begin:])]
        if not folder:
            raise nothing_to_read(uri, where=uri)
        return folder


def nothing_to_read(uri: str, *, where: str) -> Missing:
    """Returns the error for a URI without objects. where: the URL that the user should list."""
    return Missing(f"{uri}: there is nothing to read: cluster data ls {where}")


class Progress:
    """Reports the progress of staging some items."""

    def __init__(self, fetcher: fetch.Fetcher, items: Sequence[fetch.Item]) -> None:
        self._fetcher = fetcher
        self._items = items
        self._began_at = self._told_at = time.monotonic()
        self._began_bytes = fetcher.received_bytes

    def tick(self) -> None:
        """Reports the progress every TELL_EVERY_S seconds. Raises Gone."""
        check_alive()
        if time.monotonic() >= self._told_at + TELL_EVERY_S:
            self._told_at = time.monotonic()
            done = sum(1 for item in self._items if item.path)
            say(f"data: {done} of {self._count()} staged, {self._rate()}")

    def finish(self) -> None:
        """Reports the result if staging took at least TOLD_S seconds."""
        took_s = time.monotonic() - self._began_at
        if took_s < TOLD_S:
            return
        here = sum(1 for item in self._items if item.was_here)
        suffix = f", {here} were here already" if here else ""
        say(f"data: {self._count()} staged in {took_s:.1f} s, {self._rate()}{suffix}")

    def _count(self) -> str:
        size = cache.render_size(sum(item.entry.size_bytes for item in self._items))
        return f"{len(self._items)} {'file' if len(self._items) == 1 else 'files'} ({size})"

    def _rate(self) -> str:
        received = self._fetcher.received_bytes - self._began_bytes
        passed_s = max(time.monotonic() - self._began_at, 0.001)
        return f"{cache.render_size(received)} received, {received / passed_s / 1e6:.0f} MB/s"


def check_alive() -> None:
    """Raises Gone if the process has ended: while it waits for an answer, it sends nothing over stdin."""
    ready, _, _ = select.select([0], [], [], 0)
    if ready:
        raise Gone


def say(words: str) -> None:
    """Shows a line to the user."""
    sys.stderr.write(words + "\n")
    sys.stderr.flush()


def check_room(folder: str) -> None:
    """Raises OSError if the disk is full: MXNet does not notice that it cannot write the end of a file."""
    with tempfile.TemporaryFile(dir=folder) as trial:
        trial.write(bytes(TRIAL_BYTES))
        trial.flush()


def answer(stager: Stager, order: Order) -> Answer:
    """Carries out an order and returns the answer. Raises Gone."""
    try:
        return Answer(number=order.number, path=stager.carry_out(order))
    except (OSError, ValueError, re.error, fetch.StageError) as error:
        explained = fetch.explain(error, stager.cache.folder)
        return Answer(number=order.number, error=explained, is_missing=isinstance(error, Missing))


def read_orders() -> Iterator[Order]:
    """Yields the orders until stdin ends."""
    for line in sys.stdin.buffer:
        yield decode(line, Order)


def send(message: Answer) -> None:
    """Writes an answer to stdout."""
    print(msgspec.json.encode(message).decode(), flush=True)


def leave(*_: object) -> None:
    """Ends as if stdin had ended. Raises Gone, once."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Gone


def main() -> None:
    """Answers orders until stdin ends."""
    try:
        stager = Stager(os.environ)
    except (OSError, ValueError) as error:
        for order in read_orders():  # each gets the reason
            send(Answer(number=order.number, error=f"s3:// cannot be used: {error}"))
        return
    signal.signal(signal.SIGTERM, leave)
    try:
        try:
            for order in read_orders():
                send(answer(stager, order))
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # may call leave: a job's end closes stdin and sends SIGTERM
    except (Gone, BrokenPipeError):
        pass  # the same as the end of stdin
    finally:
        stager.stop()
        os._exit(0)  # threads may be in the middle of a request
