"""Copies what a job's folder says about it to S3 while the job runs: record.json, events and ranks/*.

It works in a thread of its own, which the supervisor never waits for but at the end, and there for so long as it says.
In S3 they lie at RESULTS/ID/, by the same names. The record is written last in every round: one that says that the
job has ended has a whole log beside it.

Python 3.6 and later, standard library only.
"""

import collections
import os
import threading
import time

import object_store

EVERY_S = 60.0
REST = 10  # rounds of a large log take at most one part in so many of the time
PARALLEL = 4  # files at once; training needs the processor more
RECORD = "record.json"
RANK_UNKNOWN = "@"  # in the name of a process's output that gets another name once its rank is known


class Publisher(object):
    """One job's copy in S3. Without results_url in the order it does nothing, and every method may be called.

    order: the job's, see supervise.py. folder: the job's folder. credentials: called, in the thread, before every
    round; returns the secrets dict as it then is. say: is given a line of text for the user, once for each kind of
    problem; called in the thread, so it must be something that any thread may call (a deque's append, say).
    """

    def __init__(self, order, folder, credentials, say):
        self.url = order["results_url"] and "%s/%s/" % (order["results_url"].rstrip("/"), order["job"])
        self._env = order["env"]
        self._folder = folder
        self._credentials = credentials
        self._say = say
        self._said = set()
        self._telling = threading.Lock()
        self._published = {}
        self._ending = threading.Event()
        self._complete = False
        self._thread = threading.Thread(target=self._run, name="publish")
        self._thread.daemon = True

    def start(self):
        """Publish the record now, in the thread, and what has changed every EVERY_S from then on."""
        if self.url:
            self._thread.start()

    def finish(self, timeout_s):
        """Publish what is left, for `timeout_s` seconds at most; True when all of the job's files are in S3.

        For the end of the job, when nothing writes to its folder any more; also of one that never came to `start`.
        """
        if not self.url:
            return True
        self._ending.set()
        if self._thread.ident is None:
            self._thread.start()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._tell("end", "the job's record and log in S3 are not complete: no time was left to write them")
        return self._complete and not self._thread.is_alive()

    def _run(self):
        try:
            self._round([RECORD])
            pause_s = EVERY_S
            while not self._ending.wait(pause_s):
                began = time.time()
                self._round(self._names(RANK_UNKNOWN))
                pause_s = max(EVERY_S, (time.time() - began) * REST)
            self._complete = self._round(self._names())
        except Exception as error:  # noqa: BLE001 - nobody else would hear of it; the job itself goes on
            self._tell("thread", "the job's log is no longer copied to S3: %s: %s" % (type(error).__name__, error))

    def _names(self, but_with=None):
        """The files to publish, by their names in the folder, the record last; not those with `but_with` in theirs."""
        ranks = os.path.join(self._folder, "ranks")
        found = sorted(os.listdir(ranks)) if os.path.isdir(ranks) else []
        return ["ranks/" + name for name in found if but_with is None or but_with not in name] + ["events", RECORD]

    def _round(self, names):
        """Publish those of the files that have changed; True when all of them are in S3 as they are here."""
        try:
            store = object_store.Store(dict(self._env, **self._credentials()))
        except (OSError, ValueError) as error:
            self._tell("credentials", "the job's log cannot be copied to S3: %s" % error)
            return False
        first = [name for name in names if name != RECORD]
        return self._publish_all(store, first) & self._publish_all(store, [RECORD])

    def _publish_all(self, store, names):
        """Publish files side by side, since each takes S3 a moment; True when all went well."""
        waiting = collections.deque(names)
        failed = []

        def work():
            while True:
                try:
                    name = waiting.popleft()
                except IndexError:
                    return
                try:
                    self._publish(store, name)
                except Exception as error:  # noqa: BLE001 - all of them are told; StoreError is the usual one
                    failed.append(name)
                    self._tell(_kind(error), "the job's log cannot be copied to S3: %s" % (error or type(error)))

        threads = [threading.Thread(target=work, name="publish-file") for _ in range(min(PARALLEL, len(names)))]
        for thread in threads:
            thread.daemon = True
            thread.start()
        for thread in threads:
            thread.join()
        return not failed

    def _publish(self, store, name):
        """Publish a file if it has changed. Raises OSError."""
        path = os.path.join(self._folder, name)
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return  # there is no such file yet, or it has been given its name with the rank
        version = (found.st_size, found.st_mtime_ns)
        if self._published.get(name) != version:
            store.put_file(path, self.url + name)
            self._published[name] = version

    def _tell(self, kind, text):
        with self._telling:
            if kind not in self._said:
                self._said.add(kind)
                self._say(text)


def _kind(error):
    """What two problems have in common that are told once."""
    return getattr(error, "code", None) or getattr(error, "errno", None) or type(error).__name__
