"""Stores a wheel that was built on this node, atomically.

    python built_wheel.py keep KEY DIST
    python built_wheel.py tell KEY

`keep` stores the only wheel in the folder DIST in ~/.cluster/built/KEY. `tell` adds the stored wheel to the files that
the node gives to other nodes, and prints its {"name", "sha256", "size_bytes"}; it prints nothing if there is no wheel.

Python 3.6 and later, standard library only.
"""

import glob
import hashlib
import json
import os
import shutil
import sys

READ_BYTES = 1 << 20


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


def keep(kept, dist):
    """Copies the only wheel in the folder `dist` to the folder `kept`, atomically."""
    made = find_made(dist)
    new = kept + ".new"
    shutil.rmtree(new, ignore_errors=True)
    os.makedirs(new)
    path = os.path.join(new, os.path.basename(made))
    shutil.copyfile(made, path)
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
    if sys.argv[1] == "keep":
        keep(kept, sys.argv[3])
    else:
        tell(root, kept)


if __name__ == "__main__":
    main()
