"""Stages data of S3 on this node for one process of a job, and uploads what it saves: stage_hook.py starts and asks it.

    {"number": 1, "uri": "s3://bucket/train/", "part": [index, count] or null, "shuffle_mib": 0}    data for a reader
    {"number": 2, "object": "s3://bucket/net-0001.params"}      a file as it is in S3 now
    {"number": 3, "draft": "s3://bucket/net-0002.params"}       a path to write a new file's content to
    {"number": 4, "upload": "/...", "to": "s3://bucket/net-0002.params"}

    {"number": 1, "path": "/.../a.rec;/.../b.rec"} or {"number": 1, "error": "..."}

One line each, over stdin and stdout; what it has to tell the user goes to stderr. It ends with its stdin, that is with
the process that it works for, and until then that data stays. At its start it begins to fetch what this process will
probably ask for.
Python 3.6 and later, standard library only.
"""

import json
import os
import re
import select
import signal
import sys
import tempfile
import threading
import time

import object_store
import stage_cache
import stage_disk
import stage_fetch
import stage_plan
import stage_store

TELL_EVERY_S = 5.0
TOLD_S = 1.0  # staging that took less is not worth a line
TRIAL_BYTES = 1 << 16  # more than what the end of a file can be that was not written
MOST_LISTED = 20000  # objects below [data] url, for a guess


class Gone(Exception):
    """The process that this one works for is there no more."""


class Stager(object):
    """Answers orders. env: of the job's process."""

    def __init__(self, env):
        self._env = env
        self._store = stage_store.Store(env)
        folder = stage_disk.find_folder(env)
        limit = stage_disk.find_limit(env, folder, stage_cache.find_held(folder))
        self.cache = stage_cache.Cache(folder, limit)
        self._fetcher = stage_fetch.Fetcher(self._store, self.cache, say)

    def stop(self):
        """Fetch nothing more, and remove what is half done."""
        self._fetcher.stop()
        self.cache.close()

    def look_ahead(self):
        """Begin with what will probably be asked for; what goes wrong with it is told when it is asked for."""
        url, hosts = self._env.get("CLUSTER_DATA_URL"), self._env.get("CLUSTER_DATA_RANKS", "").split()
        ranks = [rank for rank, host in enumerate(hosts) if host == self._env.get("CLUSTER_HOST")]
        if not url or not ranks:
            return
        url = url.rstrip("/") + "/"
        entries = []
        for entry in self._store.list(url):
            entries.append(entry)
            if len(entries) > MOST_LISTED:
                return
        wanted = stage_plan.guess(url, entries, ranks, len(hosts))
        if sum(entry.size_bytes for entry in wanted) <= self.cache.most_bytes:
            self._fetcher.want(wanted, stage_fetch.AHEAD)

    def stage(self, uri, part, shuffle_mib):
        """The local path of what a reader asks for. Raises StageError, OSError, ValueError, Gone."""
        row = []
        for piece in filter(None, uri.partition("#")[0].split(";")):
            row += self._expand(piece) if piece.startswith("s3://") else [piece]
        entries = [one for one in row if isinstance(one, object_store.Entry)]
        needed = set(range(len(entries)))
        if part is not None and len(entries) == len(row):
            needed = set(
                stage_plan.find_touched([entry.size_bytes for entry in entries], *part, shuffle_mib=shuffle_mib)
            )
        wanted = [entry for at, entry in enumerate(entries) if at in needed]
        self.cache.use(wanted)
        places = {item.entry.url: item.path for item in self._fetch(wanted)}
        return ";".join(self._place(one, places) for one in row)

    def stage_object(self, url):
        """The local path of an object as it is in S3 now. Raises as `stage`."""
        for entry in self._store.list(url, delimiter="/"):
            if entry.url != url:
                break  # the shortest comes first
            self.cache.use([entry])
            return self._fetch([entry])[0].path
        raise stage_fetch.StageError(stage_fetch.NOTHING % (url, url.rpartition("/")[0]))

    def upload(self, path, url):
        """Put a file to S3, which verifies it, and remove it here. Raises OSError, ValueError."""
        try:
            check_room(os.path.dirname(path))
            self._store.put_file(path, url)
        finally:
            os.remove(path)

    def _place(self, one, places):
        if not isinstance(one, object_store.Entry):
            return one
        return places.get(one.url) or self.cache.find_hole(one.size_bytes)

    def _fetch(self, wanted):
        items = self._fetcher.want(wanted, stage_fetch.NOW)
        progress = Progress(self._fetcher, items)
        stage_fetch.wait(self._fetcher, items, progress.tick)
        errors = [item.error for item in items if item.error]
        if errors:
            raise stage_fetch.StageError(stage_fetch.explain(errors[0], self.cache.folder))
        progress.finish()
        return items

    def _expand(self, uri):
        """The objects that a URI means to MXNet's readers, in their order: one, a folder's, or those of a pattern."""
        bucket, key = object_store.split_url(uri)
        if key and not key.endswith("/"):
            for entry in self._store.list(uri, delimiter="/"):
                if entry.url == uri:
                    return [entry]
                break  # the shortest comes first
        folder = [entry for entry in self._store.list(uri.rstrip("/") + "/", delimiter="/") if entry.size_bytes]
        if not folder and key and not key.endswith("/"):
            beside = self._store.list(uri.rpartition("/")[0] + "/", delimiter="/")
            pattern, begin = re.compile(key), len("s3://%s/" % bucket)
            folder = [entry for entry in beside if entry.size_bytes and pattern.fullmatch(entry.url[begin:])]
        if not folder:
            raise stage_fetch.StageError(stage_fetch.NOTHING % (uri, uri))
        return folder


class Progress(object):
    """Says how far the staging of some items has come."""

    def __init__(self, fetcher, items):
        self._fetcher = fetcher
        self._items = items
        self._began_at = self._told_at = time.monotonic()
        self._began_bytes = fetcher.received_bytes

    def tick(self):
        """Say it now and then. Raises Gone."""
        check_alive()
        if time.monotonic() >= self._told_at + TELL_EVERY_S:
            self._told_at = time.monotonic()
            done = sum(1 for item in self._items if item.path)
            say("data: %d of %s staged, %s" % (done, self._count(), self._rate()))

    def finish(self):
        """Say what came of it, if that took time."""
        if time.monotonic() < self._began_at + TOLD_S:
            return
        here = sum(1 for item in self._items if item.was_here)
        told = ", %d were here already" % here if here else ""
        say("data: %s staged in %.1f s, %s%s" % (self._count(), time.monotonic() - self._began_at, self._rate(), told))

    def _count(self):
        size = stage_cache.render_size(sum(item.entry.size_bytes for item in self._items))
        return "%d %s (%s)" % (len(self._items), "file" if len(self._items) == 1 else "files", size)

    def _rate(self):
        received = self._fetcher.received_bytes - self._began_bytes
        passed_s = max(time.monotonic() - self._began_at, 0.001)
        return "%s received, %d MB/s" % (stage_cache.render_size(received), received / passed_s / 1e6)


def check_alive():
    """Raises Gone when nobody will read an answer. While one waits for it, nothing else comes over stdin."""
    ready, _, _ = select.select([0], [], [], 0)
    if ready:
        raise Gone


def say(words):
    """A line for the user."""
    sys.stderr.write(words + "\n")
    sys.stderr.flush()


def check_room(folder):
    """Raises OSError where a disk is full: MXNet does not notice if the end of a file finds no room there."""
    with tempfile.TemporaryFile(dir=folder) as trial:
        trial.write(bytes(TRIAL_BYTES))
        trial.flush()


def answer(stager, line):
    """The answer to an order."""
    order = json.loads(line)
    told = {"number": order["number"]}
    try:
        told["path"] = carry_out(stager, order)
    except (OSError, ValueError, re.error, stage_fetch.StageError) as error:
        told["error"] = stage_fetch.explain(error, stager.cache.folder)
    return told


def carry_out(stager, order):
    """The path that answers an order. Raises OSError, ValueError, StageError, Gone."""
    if "upload" in order:
        stager.upload(order["upload"], order["to"])
        return order["to"]
    if "draft" in order:
        return stager.cache.find_draft(order["draft"])
    if "object" in order:
        return stager.stage_object(order["object"])
    return stager.stage(order["uri"], order["part"], order["shuffle_mib"])


def leave(*_):
    """Another way to be told that the end has come. Raises Gone."""
    raise Gone


def begin_ahead(stager):
    """Look ahead in a thread."""

    def look():
        try:
            stager.look_ahead()
        except OSError as error:
            say("data: nothing is fetched ahead of need: %s" % error)

    threading.Thread(target=look, daemon=True).start()


def main():
    try:
        stager = Stager(os.environ)
    except (OSError, ValueError) as error:
        for line in sys.stdin:  # each order gets the reason
            number = json.loads(line)["number"]
            print(json.dumps({"number": number, "error": "s3:// cannot be used: %s" % error}), flush=True)
        return
    signal.signal(signal.SIGTERM, leave)
    try:
        begin_ahead(stager)
        for line in sys.stdin:
            print(json.dumps(answer(stager, line)), flush=True)
    except (Gone, BrokenPipeError):
        pass  # the end, like that of stdin
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        stager.stop()
        os._exit(0)  # threads may be in the middle of a request


if __name__ == "__main__":
    main()
