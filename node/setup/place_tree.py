"""Unpacks a tree on a node from its archive (bootstrap/transfer/tree.py).

    tree/DIGEST/             files and folders
    tree/DIGEST/.complete    created last; a tree without it does not count
    tree/DIGEST.PID.new/     a tree that is being created
    tree/DIGEST.PID.old/     a tree that is being removed

The runtime of our programs is such a tree in runtime/, with a link to its Python (bootstrap/runtime/runtime.py).

Python 3.6 and later, standard library only.
"""

import errno
import glob
import os
import re
import shutil
import subprocess
import time

COMPLETE = ".complete"
DIGEST = re.compile(r"[0-9a-f]{64}$")
FULL_BYTES = 1 << 20
ARCHIVE_LIFETIME_S = 24 * 3600.0


def place(home, task):
    """Creates the tree task["digest"] in the folder task["folder"] of `home`, which is ~/.cluster; removes old trees.

    task: from TreeArchives.write (bootstrap/transfer/tree.py). For one process at a time. Repairs the state that a
    killed call has left. The archive stays, since other nodes may still take it; see remove_archives.

    Raises OSError. Then it leaves no partial tree.
    """
    trees = os.path.join(home, task["folder"])
    python = task.get("python")
    final = os.path.join(trees, task["digest"])
    if not is_complete(final, python is not None):
        os.makedirs(trees, mode=0o700, exist_ok=True)
        for name in os.listdir(trees):
            if name.endswith(".new"):
                # A killed call's tar may still write there; what it adds meanwhile is removed the next time.
                shutil.rmtree(os.path.join(trees, name), ignore_errors=True)
        if os.path.isdir(final):
            set_aside(final)
        make(final, os.path.join(home, task["archive"]), python and os.path.join(home, python))
    remove_old(trees, task["keep"], task["newest"])
    remove_forgotten_archives(os.path.join(home, "files"))


def is_complete(final, has_python):
    """Whether a tree is complete. The Python that it links to may have been removed or replaced."""
    return os.path.isfile(os.path.join(final, COMPLETE)) and (
        not has_python or os.access(os.path.join(final, "bin", "python"), os.X_OK)
    )


def make(final, archive, python=None):
    """Creates a tree under a temporary name, and renames it when all of it is on the disk. python: an absolute path.

    The name is this process's own: the tar of a killed call may outlive it, and would write to the same name.
    """
    new = "%s.%d.new" % (final, os.getpid())
    try:
        os.mkdir(new, 0o755)
        unpack(archive, new)
        if python is not None:
            link_python(new, python)
        subprocess.check_call(["sync", "-f", new])  # a power failure must not leave empty files in a complete tree
        open(os.path.join(new, COMPLETE), "wb").close()
        os.rename(new, final)
    except BaseException as error:
        shutil.rmtree(new, ignore_errors=True)  # the first error is reported
        if isinstance(error, OSError) and error.filename is None:
            error.filename = final
        raise


def link_python(new, python):
    """Makes a tree a virtual environment of a Python."""
    os.makedirs(os.path.join(new, "bin"), mode=0o755, exist_ok=True)
    os.symlink(python, os.path.join(new, "bin", "python"))
    with open(os.path.join(new, "pyvenv.cfg"), "w", encoding="utf-8") as stream:
        stream.write("home = %s\ninclude-system-site-packages = false\n" % os.path.dirname(python))


def unpack(path, new):
    """Unpacks an archive whose SHA-256 has been checked. Raises OSError with the first line of tar's errors."""
    # -m: the archive has no times. -p: its modes count, whatever the umask.
    words = ["tar", "-xzmp", "--no-same-owner", "-C", new, "-f", path]
    tar = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    message = tar.communicate()[1].decode("utf-8", "replace").strip()
    if tar.returncode != 0:
        if shutil.disk_usage(new).free < FULL_BYTES:  # of which tar may say only: wrote 512 of 10240 bytes
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise OSError(errno.EIO, message.partition("\n")[0] or "tar: exit code %d" % tar.returncode)


# -- old trees and archives ------------------------------------------------------------------------------------------


def remove_archives(home, tasks):
    """Removes the archives of the tasks that are trees. Call this once no node takes them from this one any more."""
    for task in tasks:
        if task["kind"] == "tree":
            remove_archive(os.path.join(home, task["archive"]))


def remove_archive(path):
    try:
        os.unlink(path)
        os.rmdir(os.path.dirname(path))
    except FileNotFoundError:
        pass


def remove_forgotten_archives(files):
    """Removes archives that killed commands have left; only after a while, since the next command may want them."""
    folder = os.path.join(glob.escape(files), "*")
    for path in glob.glob(os.path.join(folder, "tree-*.tar*")) + glob.glob(os.path.join(folder, "image-*.tar")):
        try:
            age_s = time.time() - os.stat(path).st_mtime
        except FileNotFoundError:  # the agent of another command has just removed it
            continue
        if age_s > ARCHIVE_LIFETIME_S:
            remove_archive(path)


def remove_old(trees, keep, newest):
    """Removes old trees, except those in `keep`, the newest others, as many as `newest`, and those in use."""
    ages = {}
    for name in os.listdir(trees):
        if name.endswith(".old"):
            shutil.rmtree(os.path.join(trees, name), ignore_errors=True)
        elif DIGEST.match(name) and name not in keep:
            try:
                ages[name] = os.stat(os.path.join(trees, name, COMPLETE)).st_mtime
            except FileNotFoundError:
                ages[name] = 0.0
    old = sorted(ages, key=lambda name: (ages[name], name), reverse=True)[newest:]
    if old:
        used = find_used()
        for name in old:
            if name not in used:
                set_aside(os.path.join(trees, name))


def set_aside(path):
    """Renames a tree, and removes it. Files that belong to root may stay, under the other name."""
    aside = "%s.%d.old" % (path, os.getpid())
    os.rename(path, aside)
    shutil.rmtree(aside, ignore_errors=True)


def find_used():
    """The digests of the trees that processes run in, or name on their command line or in their environment."""
    mentioned = re.compile(rb"/(?:tree|runtime)/([0-9a-f]{64})")
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
    except OSError:  # the process has ended meanwhile, or belongs to another user
        return b""
