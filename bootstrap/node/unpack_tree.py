"""Unpacks a pack: the files of a tree, from the pack and from the tree that it was made against.

bootstrap/pack.py has the format. Python 3.6 and later, standard library only.
"""

import errno
import hashlib
import json
import os
import re
import stat
import tarfile
import zlib

COMPLETE = ".complete"
READ_BYTES = 1 << 20
DIGEST = re.compile(r"[0-9a-f]{64}$")


class BaseChanged(Exception):
    """The tree that this one was to be made from is not as it was, or gone. `base`: its digest."""

    def __init__(self, base, path):
        super(BaseChanged, self).__init__("tree/%s/%s is not as it was sent: a program has changed it" % (base, path))
        self.base = base


def read_pack(pack, digest, new, trees):
    """Unpack, with OSError for a pack that cannot be understood."""
    try:
        with tarfile.open(pack, "r|*") as archive:
            return unpack(archive, digest, new, trees)
    except (tarfile.TarError, EOFError, zlib.error, KeyError, TypeError, ValueError) as error:
        raise OSError(errno.EBADMSG, "not a whole pack: %s" % error, pack) from error


def unpack(archive, digest, new, trees):
    """Write every file of the tree, each checked against its SHA-256.

    Returns the manifest, and the paths of the files as bytes.
    """
    member = archive.next()
    if member is None or member.name != "delta" or not member.isreg():
        raise ValueError("it does not begin as one")
    delta = json.loads(archive.extractfile(member).read().decode("ascii"))
    base = delta["base"]
    there = {path: (path, sha256, mode, size) for path, sha256, mode, size in read_base(trees, base)}
    manifest = apply_delta(there, delta)
    if hashlib.sha256(manifest).hexdigest() != digest:
        raise ValueError("it is not that of tree %s" % digest)
    wanted = {}
    for path, sha256, mode, size in json.loads(manifest.decode("ascii"))["files"]:
        wanted.setdefault(sha256, []).append((inside(new, path), mode, size))
    make_folders(new, wanted, delta["folders"])
    in_base = {entry[1]: entry[0] for entry in there.values() if entry[1] in wanted}
    for sha256, path in in_base.items():
        take_from_base(trees, base, path, sha256, wanted[sha256])
    take_from_pack(archive, wanted, set(wanted) - set(in_base))
    for sha256, places in wanted.items():
        for entry in places[1:]:
            with open(places[0][0], "rb") as stream:
                if write_file(stream, entry) != sha256:
                    raise ValueError("the disk gives back other bytes than were written")
    return manifest, [entry[0] for places in wanted.values() for entry in places]


def read_base(trees, base):
    """The files of the tree that this one is made from, as its manifest has them; none where there is none."""
    if base is None:
        return []
    if not DIGEST.match(base):
        raise ValueError("%r is no digest" % base)
    with open_in_base(os.path.join(trees, base, COMPLETE), base, COMPLETE) as stream:
        manifest = stream.read()
    if hashlib.sha256(manifest).hexdigest() != base:
        raise BaseChanged(base, COMPLETE)
    return json.loads(manifest.decode("ascii"))["files"]


def apply_delta(there, delta):
    """The manifest of the new tree, byte for byte as make_tree of bootstrap/tree.py writes it."""
    entries = dict(there)
    for path in delta["removed"]:
        del entries[path]
    for path, sha256, mode, size in delta["files"]:
        entries[path] = (path, sha256, mode, size)
    manifest = {"files": [entries[path] for path in sorted(entries)], "folders": delta["folders"]}
    return json.dumps(manifest, separators=(",", ":")).encode("ascii")


def take_from_pack(archive, wanted, left):
    """Write the contents that the pack has; `left`: those that it must have."""
    while True:
        member = archive.next()
        if member is None:
            break
        archive.members = []  # it would remember each of them
        left.remove(member.name)
        if not member.isreg():
            raise ValueError("%s is no file" % member.name)
        if write_file(archive.extractfile(member), wanted[member.name][0]) != member.name:
            raise ValueError("%s has another content" % member.name)
    if left:
        raise ValueError("%d contents are missing" % len(left))


def inside(root, path):
    """Where a path of a manifest lies below a folder, as bytes: file names are UTF-8, whatever the locale says."""
    if path == COMPLETE or "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError("%r cannot be a path in a tree" % path)
    return os.path.join(os.fsencode(root), path.encode("utf-8"))


def make_folders(new, wanted, empty):
    """Make all folders of a tree."""
    for folder in {os.path.dirname(entry[0]) for places in wanted.values() for entry in places}:
        os.makedirs(folder, mode=0o755, exist_ok=True)
    for path in empty:
        os.makedirs(inside(new, path), mode=0o755, exist_ok=True)


def take_from_base(trees, base, path, sha256, places):
    """Copy a file that is there already. Never a link: a job that writes to the one would change the other."""
    with open_in_base(inside(os.path.join(trees, base), path), base, path) as stream:
        if os.fstat(stream.fileno()).st_size != places[0][2] or write_file(stream, places[0]) != sha256:
            raise BaseChanged(base, path)


def open_in_base(source, base, path):
    """Open a file. What a program has put there instead, a pipe or a link, is not followed and not waited for."""
    try:
        handle = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise BaseChanged(base, path) from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise BaseChanged(base, path)
    return os.fdopen(handle, "rb")


def write_file(stream, entry):
    """Write a file from a stream; returns the SHA-256 of its bytes."""
    path, mode, _ = entry
    if mode not in (0o644, 0o755):
        raise ValueError("mode %o" % mode)
    digest = hashlib.sha256()
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb", 0) as out:
        os.fchmod(handle, mode)  # whatever the umask is
        while True:
            data = stream.read(READ_BYTES)
            if not data:
                return digest.hexdigest()
            digest.update(data)
            data = memoryview(data)
            while data:
                data = data[out.write(data) :]
