"""Stores a wheel that was built on this node, atomically; adds the missing files to MXNet's wheel first.

    python build_wheel.py pack KEY DIST SOURCE LIBRARY BUILD_TAG
    python build_wheel.py keep KEY DIST
    python build_wheel.py tell KEY

`pack` reads the only wheel in the folder DIST, made by `python setup.py bdist_wheel`, and writes a wheel like PyPI's to
~/.cluster/built/KEY: with libmxnet.so where `import mxnet` finds it (setup.py places it next to the environment's bin),
and with launch.py and dmlc_tracker, which start jobs, from the folder SOURCE. Its name includes BUILD_TAG. `keep`
stores the only wheel in DIST there, unchanged. `tell` adds the stored wheel to the files that the node gives to other
nodes, and prints its {"name", "sha256", "size_bytes"}; it prints nothing if there is no wheel.

Python 3.6 and later, standard library only.
"""

import base64
import glob
import hashlib
import json
import os
import shutil
import sys
import zipfile

READ_BYTES = 1 << 20
LIBRARY = "mxnet/libmxnet.so"
TRACKERS = ("3rdparty/dmlc-core/tracker/dmlc_tracker", "dmlc-core/tracker/dmlc_tracker")
OLDEST_TIME = (1980, 1, 1, 0, 0, 0)  # that zip can store; the same for each build


def find_added(source, library):
    """The files to add to the wheel of setup.py: {name in the wheel: path on this node}."""
    added = {LIBRARY: library}
    tracker = next((path for path in (os.path.join(source, name) for name in TRACKERS) if os.path.isdir(path)), None)
    if tracker is None or not os.path.isfile(os.path.join(source, "tools", "launch.py")):
        sys.exit("the source has no tools/launch.py, or no %s: it cannot start jobs" % TRACKERS[0])
    for path in glob.glob(os.path.join(source, "tools", "*.py")):
        added["mxnet/tools/" + os.path.basename(path)] = path
    for folder, _, names in os.walk(tracker):
        below = os.path.relpath(folder, os.path.dirname(tracker))
        for name in names:
            if name.endswith(".py"):
                added["%s/%s" % (below, name)] = os.path.join(folder, name)
    return added


def rename(name, tag):
    """A wheel's name with a build tag, only for this platform (PEP 427). Pure."""
    project, version = name.split("-")[:2]
    return "%s-%s-%s-py3-none-linux_%s.whl" % (project, version, tag, os.uname().machine)


def render_about(text, tag):
    """The file WHEEL of a wheel with that build tag, only for this platform. Pure."""
    kept = [line for line in text.splitlines() if line and not line.startswith(("Tag:", "Build:", "Root-Is-Purelib:"))]
    # Marked pure, so that it is installed in the folder of pure packages, where jobs look for launch.py.
    kept += ["Root-Is-Purelib: true", "Build: %s" % tag, "Tag: py3-none-linux_%s" % os.uname().machine]
    return "\n".join(kept) + "\n"


class Wheel(object):
    """A wheel that is being written; the file RECORD comes last."""

    def __init__(self, path):
        self.zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self.record = []

    def add(self, name, stream):
        entry = zipfile.ZipInfo(name, OLDEST_TIME)
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.external_attr = 0o100755 << 16 if name.endswith(".so") else 0o100644 << 16
        digest, size = hashlib.sha256(), 0
        with self.zip.open(entry, "w", force_zip64=True) as target:
            for data in iter(lambda: stream.read(READ_BYTES), b""):
                target.write(data)
                digest.update(data)
                size += len(data)
        coded = base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode("ascii")
        self.record.append('"%s",sha256=%s,%d' % (name.replace('"', '""'), coded, size))

    def finish(self, name):
        self.zip.writestr(zipfile.ZipInfo(name, OLDEST_TIME), "\n".join(self.record + [name + ",,", ""]))
        self.zip.close()


def write_wheel(made, path, added, tag):
    """Copies the wheel that setup.py has made, and adds the files that it lacks."""
    with zipfile.ZipFile(made) as old:
        info = next(name[: -len("RECORD")] for name in old.namelist() if name.endswith(".dist-info/RECORD"))
        wheel = Wheel(path)
        for name in sorted(added):
            with open(added[name], "rb") as stream:
                wheel.add(name, stream)
        for name in sorted(old.namelist()):
            left_out = name.endswith(("/", ".data/data/" + LIBRARY)) or name in added
            if left_out or name in (info + "RECORD", info + "WHEEL"):
                continue
            with old.open(name) as stream:
                wheel.add(name, stream)
        about = os.path.join(os.path.dirname(path), "WHEEL")
        with open(about, "w", encoding="utf-8") as stream:
            stream.write(render_about(old.read(info + "WHEEL").decode("utf-8"), tag))
        with open(about, "rb") as stream:
            wheel.add(info + "WHEEL", stream)
        os.unlink(about)
        wheel.finish(info + "RECORD")


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for data in iter(lambda: stream.read(READ_BYTES), b""):
            digest.update(data)
    return digest.hexdigest()


def find_made(dist):
    """The path of the only wheel in the folder `dist`; exits if there is not exactly one."""
    made = glob.glob(os.path.join(dist, "*.whl"))
    if len(made) != 1:
        sys.exit("the build left %d wheels, not one" % len(made))
    return made[0]


def keep(kept, name, write):
    """Has `write` make a wheel, and moves it to the folder `kept` atomically."""
    new = kept + ".new"
    shutil.rmtree(new, ignore_errors=True)
    os.makedirs(new)
    path = os.path.join(new, name)
    write(path)
    about = {"name": os.path.basename(path), "sha256": sha256_of(path), "size_bytes": os.path.getsize(path)}
    with open(os.path.join(new, "built.json"), "w") as stream:
        json.dump(about, stream)
    os.sync()
    shutil.rmtree(kept, ignore_errors=True)
    os.rename(new, kept)


def tell(root, kept):
    """Adds the stored wheel to the node's files, and describes it as JSON on stdout. Removes it if it is damaged."""
    try:
        with open(os.path.join(kept, "built.json")) as stream:
            about = json.load(stream)
        whole = sha256_of(os.path.join(kept, about["name"])) == about["sha256"]
    except FileNotFoundError:
        return
    if not whole:
        shutil.rmtree(kept)
        return
    folder = os.path.join(root, "files", about["sha256"])
    if not os.path.exists(os.path.join(folder, about["name"])):
        os.makedirs(folder, exist_ok=True)
        new = os.path.join(root, "incoming", "built-%d" % os.getpid())
        os.makedirs(os.path.dirname(new), exist_ok=True)
        os.link(os.path.join(kept, about["name"]), new)
        os.rename(new, os.path.join(folder, about["name"]))
    print(json.dumps(about))


def main():
    os.umask(0o077)
    root = os.path.join(os.path.expanduser("~"), ".cluster")
    kept = os.path.join(root, "built", sys.argv[2])
    if sys.argv[1] == "pack":
        dist, source, library, tag = sys.argv[3:]
        made, added = find_made(dist), find_added(source, library)
        keep(kept, rename(os.path.basename(made), tag), lambda path: write_wheel(made, path, added, tag))
    elif sys.argv[1] == "keep":
        made = find_made(sys.argv[3])
        keep(kept, os.path.basename(made), lambda path: shutil.copyfile(made, path))
    else:
        tell(root, kept)


if __name__ == "__main__":
    main()
