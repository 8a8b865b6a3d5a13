"""The files that a node has or is receiving, addressed by their content. Each is checked against its SHA-256.

    files/SHA256/NAME      a whole, checked file, moved here by a rename
    incoming/SHA256        an arriving file, from its first byte on: resumed after a kill

Python 3.6 and later, standard library only.
"""

import errno
import hashlib
import os
import shutil
import threading

READ_BYTES = 1 << 20


def start_thread(target, *arguments):
    """Runs `target` in a thread that does not keep this process alive. Returns the thread."""
    thread = threading.Thread(target=target, args=arguments)
    thread.daemon = True
    thread.start()
    return thread


class Damaged(Exception):
    """A file arrived with a wrong SHA-256; its bytes have been removed."""


class DiskFailed(Exception):
    """This node's disk failed: it is full, read-only or broken."""


class Arriving(object):
    """One file on its way into the store. One thread appends; any number of threads read the bytes so far.

    have: how many of its first bytes have arrived.
    """

    def __init__(self, root, sha256, name, size):
        self.sha256 = sha256
        self.size = size
        self.path = os.path.join(root, "files", sha256, name)
        self.have = 0
        self.whole = False
        self.changed = threading.Condition()
        self._partial = os.path.join(root, "incoming", sha256)
        self._hash = hashlib.sha256()
        self._file = None
        self._scan()

    def _scan(self):
        try:
            if os.stat(self.path).st_size == self.size:
                self.have, self.whole = self.size, True
                return
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
        os.makedirs(os.path.dirname(self._partial), exist_ok=True)
        self._file = os.fdopen(os.open(self._partial, os.O_RDWR | os.O_CREAT, 0o600), "r+b", 0)
        while self.have < self.size:
            data = self._file.read(min(READ_BYTES, self.size - self.have))
            if not data:
                break
            self._hash.update(data)
            self.have += len(data)
        self._file.truncate(self.have)
        if self.have == self.size:  # after a kill just before the rename, and for empty files
            try:
                self.finish()
            except Damaged:
                pass  # `finish` has started the file again

    def append(self, data, offset):
        """Appends the bytes at `offset`, without those that have arrived already. Raises DiskFailed."""
        data = memoryview(data)[max(0, self.have - offset) : max(0, self.size - offset)]
        while data:
            try:
                count = self._file.write(data)
            except OSError as error:
                raise DiskFailed("%s: %s" % (self._partial, error.strerror)) from error
            self._hash.update(data[:count])
            with self.changed:
                self.have += count
                self.changed.notify_all()
            data = data[count:]

    def finish(self):
        """Checks the file and moves it into place, once all bytes have arrived. Raises Damaged, DiskFailed."""
        if self._hash.hexdigest() != self.sha256:
            self._begin_anew()
            raise Damaged("%s: its SHA-256 is not %s" % (os.path.basename(self.path), self.sha256))
        try:
            self._file.close()
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            os.rename(self._partial, self.path)
        except OSError as error:
            raise DiskFailed("%s: %s" % (self.path, error.strerror)) from error
        with self.changed:
            self.whole = True
            self.changed.notify_all()

    def _begin_anew(self):
        with self.changed:
            self.have = 0
            self._file.seek(0)
            self._file.truncate(0)
            self._hash = hashlib.sha256()
            self.changed.notify_all()

    def open(self):
        """Opens the bytes so far for reading. The file object stays valid when the file is moved into place."""
        try:
            return open(self.path if self.whole else self._partial, "rb")
        except FileNotFoundError:  # the file has just been moved into place
            return open(self.path, "rb")

    def wait_for_more(self, offset, timeout_s):
        """Waits until more than `offset` bytes have arrived, or for timeout_s seconds. Returns the number of bytes.

        It is smaller than before if the file had to start again. A node that took damaged bytes notices that itself.
        """
        with self.changed:
            self.changed.wait_for(lambda: self.have > offset, timeout_s)
            return self.have


class Store(object):
    """The files of one node, below its ~/.cluster."""

    def __init__(self, root):
        self.root = root
        self._arriving = {}

    def expect(self, files):
        """Registers files, [{"sha256", "name", "size"}, ...]. Returns those that are not whole yet, in order."""
        for file in files:
            self._arriving[file["sha256"]] = Arriving(self.root, file["sha256"], file["name"], file["size"])
        return [self._arriving[file["sha256"]] for file in files if not self._arriving[file["sha256"]].whole]

    def find(self, sha256):
        """The file with a digest, whole or arriving; None if the node has no such file."""
        found = self._arriving.get(sha256)
        if found is not None:
            return found
        folder = os.path.join(self.root, "files", sha256)
        try:
            names = os.listdir(folder)
        except OSError:
            return None
        if len(names) != 1:
            return None
        size = os.stat(os.path.join(folder, names[0])).st_size
        return self._arriving.setdefault(sha256, Arriving(self.root, sha256, names[0], size))

    def forget_partial(self):
        """Removes partial files of earlier commands, except those that are expected now."""
        folder = os.path.join(self.root, "incoming")
        try:
            names = os.listdir(folder)
        except FileNotFoundError:
            return
        for name in names:
            if name not in self._arriving:
                path = os.path.join(folder, name)
                shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
