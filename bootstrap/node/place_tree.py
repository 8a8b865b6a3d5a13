"""Makes a tree on a node from a pack and, where it was made against one, a tree that is there already.

    tree/DIGEST/             files and folders, as the manifest says
    tree/DIGEST/.complete    its manifest; without it the rest does not count
    tree/DIGEST.new/         being made
    tree/DIGEST.PID.old/     being removed

Python 3.6 and later, standard library only.
"""

import ctypes
import glob
import json
import os
import re
import shutil
import time

from unpack_tree import COMPLETE, DIGEST, BaseChanged, inside, read_pack

__all__ = ["BaseChanged", "place", "remove_packs"]

KEPT = 3
MANY = 200  # one flush of all the disk has costs less than so many: 20 000 files took 5 to 15 s, of 3 s without
PACK_LIFETIME_S = 24 * 3600.0


def place(home, order):
    """Make the tree order["digest"] below `home`, which is ~/.cluster, and remove what is old there.

    order: Pack.order of bootstrap/pack.py. To be called by one process at a time. Where it is killed, the next call
    makes good. The pack stays: others may still be taking it from here; see remove_packs.

    Raises BaseChanged when all of the tree must be sent; OSError for what the disk does not take, and with EBADMSG for
    a pack that is not a whole one. Nothing half-made is left then.
    """
    trees = os.path.join(home, "tree")
    final = os.path.join(trees, order["digest"])
    if not os.path.isfile(os.path.join(final, COMPLETE)):
        os.makedirs(trees, mode=0o700, exist_ok=True)
        for name in os.listdir(trees):
            if name.endswith(".new"):
                shutil.rmtree(os.path.join(trees, name))
        if os.path.isdir(final):
            set_aside(final)
        make(trees, final, order["digest"], os.path.join(home, order["pack"]))
    remove_old(trees, order["keep"])
    remove_forgotten_packs(os.path.join(home, "files"))


def make(trees, final, digest, pack):
    """Make a tree under another name, and give it its own when all of it is on the disk."""
    new = final + ".new"
    try:
        os.mkdir(new, 0o755)
        manifest, written = read_pack(pack, digest, new, trees)
        flush(new, written)
        with open(os.path.join(new, COMPLETE), "wb") as stream:
            stream.write(manifest)
            stream.flush()
            os.fsync(stream.fileno())
        sync_path(new)
        os.rename(new, final)
    except BaseException as error:
        shutil.rmtree(new, ignore_errors=True)  # the first error is the one to tell
        if isinstance(error, OSError) and error.filename is None:
            error.filename = final
        raise
    sync_path(trees)


def flush(new, written):
    """Have all of it on the disk, so that a node that loses its power has no empty files in a complete tree."""
    if len(written) > MANY:
        sync_file_system(new)
        return
    # After all is written, not file by file: the first one's flush takes most of the others along.
    for path in written:
        sync_path(path)
    for folder, _, _ in os.walk(os.fsencode(new)):
        sync_path(folder)


def sync_path(path):
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file_system(path):
    """syncfs(2), which Python does not have."""
    handle = os.open(path, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(handle) != 0:
            raise OSError(ctypes.get_errno(), "syncfs: %s" % os.strerror(ctypes.get_errno()), path)
    finally:
        os.close(handle)


# -- what is old -----------------------------------------------------------------------------------------------------


def remove_packs(home, tasks):
    """Remove the packs of these orders, when nobody takes them from here any more; scripts are passed over."""
    for task in tasks:
        if task["kind"] == "tree":
            remove_pack(os.path.join(home, task["pack"]))


def remove_pack(path):
    try:
        os.unlink(path)
        os.rmdir(os.path.dirname(path))
    except FileNotFoundError:
        pass


def remove_forgotten_packs(files):
    """Remove the packs of commands that were killed. Not at once: the next command may want them."""
    for path in glob.glob(os.path.join(glob.escape(files), "*", "tree-*.tar*")):
        if time.time() - os.stat(path).st_mtime > PACK_LIFETIME_S:
            remove_pack(path)


def remove_old(trees, keep):
    """Remove trees but these, the newest three beside them, those in use, and those with files that a job has left."""
    ages = {}
    for name in os.listdir(trees):
        if name.endswith(".old"):
            shutil.rmtree(os.path.join(trees, name), ignore_errors=True)
        elif DIGEST.match(name) and name not in keep:
            try:
                ages[name] = os.stat(os.path.join(trees, name, COMPLETE)).st_mtime
            except FileNotFoundError:
                ages[name] = 0.0
    old = sorted(ages, key=lambda name: (ages[name], name), reverse=True)[KEPT:]
    if old:
        used = find_used()
        for name in old:
            if name not in used and is_as_placed(os.path.join(trees, name)):
                set_aside(os.path.join(trees, name))


def is_as_placed(tree):
    """Whether nothing is there but what was put there. What a job has written is not ours to remove."""
    try:
        with open(os.path.join(tree, COMPLETE), "rb") as stream:
            placed_at = os.fstat(stream.fileno()).st_mtime  # it is made last
            entries = json.loads(stream.read().decode("ascii"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    placed = {inside(tree, entry[0]) for entry in entries} | {os.fsencode(os.path.join(tree, COMPLETE))}
    for folder, folders, names in os.walk(os.fsencode(tree)):
        if b"__pycache__" in folders:
            folders.remove(b"__pycache__")
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for path in (os.path.join(folder, name) for name in names + links):
            if path not in placed or os.lstat(path).st_mtime > placed_at:
                return False
    return True


def set_aside(path):
    """Remove a tree. Under another name: what a program made there may belong to root, and stay."""
    aside = "%s.%d.old" % (path, os.getpid())
    os.rename(path, aside)
    shutil.rmtree(aside, ignore_errors=True)


def find_used():
    """The digests of the trees that processes run in, or have on their command line or in their environment."""
    mentioned = re.compile(rb"/tree/([0-9a-f]{64})")
    found = set()
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            for name in ("cwd", "cmdline", "environ"):
                found.update(digest.decode("ascii") for digest in mentioned.findall(read_proc(pid, name)))
    return found


def read_proc(pid, name):
    path = "/proc/%s/%s" % (pid, name)
    try:
        if name == "cwd":
            return os.fsencode(os.readlink(path))
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:  # it ended meanwhile, or belongs to somebody else
        return b""
