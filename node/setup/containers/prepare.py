"""Prepares a node for jobs in containers: finds its engine, pulls the image, inspects it, and tries it.

It is sent over ssh and not stored on the node. Requests and answers are JSON, one per line. Answers come in order, and
{"alive": true} every two seconds. The end of stdin ends this program and the command that it runs.

    {"find": "auto"}                 {"engine": words or null, "said": [why not], "ids": [uid, gid],
                                     "machine", "memory_bytes", "shm_bytes"}
    {"inspect": IMAGE}               {"image": {"id", "digests", "machine", "os", "path", "python_path", "has_owners"}
                                     or null}
    {"map": IMAGE_ID}                {"mapped": true} or {"failed": text}: gives the image's files the owners that
                                     containers of this node's user see
    {"pull": IMAGE, "login": LOGIN}  {"pulled": true} or {"failed": text}
    {"take": FOLDER, "from": ORDER}  {"taken": path} or {"failed": text}: runs a command in a container, and unpacks the
                                     archive that it prints to FOLDER below the home folder, unless that exists
    {"try": ORDER, "once": NAME or null}
                                     {"tried": true} or {"failed": text}: runs a command in a container, see
                                     engine.run_words
    {"save": IMAGE_ID}               {"sha256", "name", "size"} of the image's file in the store, or {"failed": text}
    {"load": SHA256}                 {"loaded": true} or {"failed": text}: the image of a file in the store
    {"forget": SHA256}               {"forgotten": true}: the file has been removed

LOGIN is null or {"server", "username", "password"}. The engine reads the password from a named pipe, whose content is
never in a file: after a kill, nothing of it is left.

Linux. Python 3.6 and later, standard library only.
"""

import base64
import ctypes
import errno
import fcntl
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import traceback

from node.setup.containers import archive, engine
from node.setup.messages import stay_alive, tell

PIPE_EVERY_S = 0.02
TRY_TIMEOUT_S = 120
LONGEST_SAID = 4000
OWNERS = "cluster-owners"  # the container for which podman copies an image
PR_SET_PDEATHSIG = 1  # linux/prctl.h
MEMORY = "/dev/shm"  # noqa: S108 - we create a folder of our own in it
_LIBC = ctypes.CDLL(None, use_errno=True)


def main():
    code = 0
    try:
        serve()
    except SystemExit:  # a signal
        code = 1
    except Exception:  # noqa: BLE001 - at its own end, Python would wait for the thread that reads stdin, and abort
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)


def serve():
    """Answers requests until stdin ends."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(1))
    stay_alive()
    requests = Requests()
    node = Node()
    try:
        while True:
            request = requests.take()
            if request is None:
                return
            for verb in ("find", "inspect", "map", "pull", "take", "try", "save", "load", "forget"):
                if verb in request:
                    tell(getattr(node, "do_" + verb)(request))
    finally:
        node.end()


class Requests(object):
    """The lines of stdin, read in a thread. The end of stdin also ends the engine's command that runs."""

    def __init__(self):
        self._changed = threading.Condition()
        self._waiting = []
        self._is_over = False
        start_thread(self._read)

    def _read(self):
        while True:
            line = sys.stdin.buffer.readline()
            with self._changed:
                self._is_over = not line
                if line:
                    self._waiting.append(json.loads(line.decode("utf-8")))
                self._changed.notify_all()
            if not line:
                os.kill(os.getpid(), signal.SIGHUP)
                return

    def take(self):
        """The next request; None at the end of stdin."""
        with self._changed:
            while not self._waiting and not self._is_over:
                self._changed.wait(0.5)
            return self._waiting.pop(0) if self._waiting else None


class Node(object):
    """This node and its engine."""

    def __init__(self):
        self._engine = None
        self._child = None

    def do_find(self, request):
        """Finds the engine."""
        # Otherwise engines would create the folders for mounts, in the containers' home folder, as another user.
        inside = [os.path.join(engine.HOME_FOLDER, ".cluster", name) for name in engine.MOUNT_FOLDERS]
        for name in [engine.PYTHONS_FOLDER] + inside:
            path = os.path.join(os.path.expanduser("~"), name)
            if not os.path.isdir(path):
                os.makedirs(path, 0o700)
        self._engine, said = engine.find(request["find"], os.environ)
        shm = os.statvfs(MEMORY) if os.path.isdir(MEMORY) else None
        return {
            "engine": self._engine,
            "said": said,
            "ids": [os.getuid(), os.getgid()],
            "machine": os.uname().machine,
            "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            "shm_bytes": shm.f_blocks * shm.f_frsize if shm is not None else 0,
        }

    def do_inspect(self, request):
        """Describes an image, if the node has it."""
        code, out, _ = self._run(engine.inspect_words(self._engine, request["inspect"]))
        if code != 0:
            return {"image": None}
        image = describe(json.loads(out.decode("utf-8"))[0])
        image["has_owners"] = self._has_owners(image["id"])
        return {"image": image}

    def do_pull(self, request):
        """Pulls an image."""
        login = request.get("login")
        if login is None:
            code, _, said = self._run(engine.pull_words(self._engine, request["pull"], None))
        else:
            with Credentials(login) as credentials:
                code, _, said = self._run(engine.pull_words(self._engine, request["pull"], credentials.path))
        return {"pulled": True} if code == 0 else {"failed": shorten(said, code)}

    def do_map(self, request):
        """Has podman copy the image with the owners that its containers see.

        podman does so once for each image, for the first container. Otherwise a job's first process would do it, within
        the limit for a start: 5 s for 300 MB on an idle disk. If the kernel maps owners, podman copies nothing.
        """
        image = request["map"]
        with open(os.path.join(archive.folder("tried"), "owners.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another command may be at it
            if self._has_owners(image):
                return {"mapped": True}
            remove = engine.remove_words(self._engine, [OWNERS])
            self._run(remove)  # a killed program may have left it
            code, _, said = self._run(engine.create_words(self._engine, image, OWNERS))
            if code == 0:
                code, layers, said = self._run(engine.layers_words(self._engine, OWNERS))
            self._run(remove)
            if code != 0:
                return {"failed": shorten(said, code)}
            data = json.loads(layers.decode("utf-8")) or {}
            found = [path for path in data.get("LowerDir", "").split(":") if os.path.isdir(path)]
            with open(note_of(image), "w") as stream:
                json.dump(found, stream)
        return {"mapped": True}

    def _has_owners(self, image):
        """Whether podman has copied an image, or need not.

        The note has the paths of the layers that outlive the container. The copy's name is random: an image that was
        removed and came again, also by hand, has none of this name.
        """
        if not engine.is_podman(self._engine) or os.getuid() == 0:
            return True
        try:
            with open(note_of(image)) as stream:
                layers = json.load(stream)
        except (FileNotFoundError, ValueError):  # ValueError: a killed program was writing it
            return False
        return all(os.path.isdir(path) for path in layers)

    def do_try(self, request):
        """Runs a command in a container. "once" names what it tries: if that has succeeded before, does nothing."""
        order = request["try"]
        done = os.path.join(archive.folder("tried"), request["once"]) if request.get("once") else None
        if done is not None and os.path.exists(done):
            return {"tried": True}
        words, passed = engine.run_words(self._engine, order, {}, os.getuid(), os.getgid())
        try:
            code, out, said = self._run(words, passed, TRY_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._run(engine.remove_words(self._engine, [order["name"]]))
            return {"failed": "it did not end within %d s" % TRY_TIMEOUT_S}
        if code != 0:
            return {"failed": shorten(said or out, code)}
        if done is not None:
            open(done, "w").close()
        return {"tried": True}

    def do_take(self, request):
        """Takes files out of an image."""
        folder = os.path.join(os.path.expanduser("~"), request["take"])
        if os.path.isdir(folder):
            return {"taken": folder}
        words, passed = engine.run_words(self._engine, request["from"], {}, os.getuid(), os.getgid())
        code, out, said = self._run(words, passed, TRY_TIMEOUT_S)
        if code != 0:
            return {"failed": shorten(said, code)}
        draft = "%s.%d" % (folder, os.getpid())
        try:
            os.makedirs(draft, 0o700)
            with tarfile.open(fileobj=io.BytesIO(out)) as packed:
                plain = [one for one in packed.getmembers() if one.isfile() and is_inside(one.name)]
                packed.extractall(draft, plain)  # noqa: S202 - only plain files inside the folder
            try:
                os.rename(draft, folder)
            except OSError:
                if not os.path.isdir(folder):  # otherwise, another command was faster
                    raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return {"taken": folder}

    def do_save(self, request):
        """Saves an image to the store, for other nodes."""
        image = request["save"]

        def write(path):
            with open(path, "wb") as stream:  # owned by this user, even if the engine's client runs as root
                code, _, said = self._run(engine.save_words(self._engine, image), stdout=stream)
            if code != 0:
                raise OSError(shorten(said, code))

        try:
            return archive.save(image, write)
        except OSError as error:
            return {"failed": str(error)}

    def do_load(self, request):
        """Loads the image in a file of the store."""
        try:
            path = archive.find(request["load"])
        except OSError as error:
            return {"failed": str(error)}
        code, _, said = self._run(engine.load_words(self._engine, path))
        return {"loaded": True} if code == 0 else {"failed": shorten(said, code)}

    def do_forget(self, request):
        """Removes a file from the store."""
        archive.forget(request["forget"])
        return {"forgotten": True}

    def _run(self, words, env=None, timeout_s=None, stdout=subprocess.PIPE):
        """Runs a command of the engine, which dies with this process. Returns (exit code, stdout, stderr)."""

        def prepare():
            os.setsid()
            _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

        own = dict(env or {})
        own.update(engine.environment(os.environ))
        self._child = subprocess.Popen(
            words,
            env=own,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            preexec_fn=prepare,
        )
        try:
            out, said = self._child.communicate(timeout=timeout_s)
        except BaseException:
            self.end()
            raise
        return self._child.returncode, out, said

    def end(self):
        """Kills the running command, if any."""
        if self._child is not None and self._child.poll() is None:
            os.killpg(self._child.pid, signal.SIGKILL)
            self._child.communicate()


class Credentials(object):
    """A file with a user's password, in the format of `docker login`, for the engine. It is in fact a named pipe."""

    def __init__(self, login):
        pair = "%s:%s" % (login["username"], login["password"])
        auth = base64.b64encode(pair.encode("utf-8")).decode("ascii")
        server = login["server"]
        names = [server] if server != "docker.io" else [server, "https://index.docker.io/v1/"]
        self._content = json.dumps({"auths": {name: {"auth": auth} for name in names}}).encode("ascii")
        self._folder = self._thread = None
        self._over = threading.Event()
        self.path = ""

    def __enter__(self):
        self._folder = tempfile.mkdtemp(prefix="cluster-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None)
        self.path = os.path.join(self._folder, "config.json")
        os.mkfifo(self.path, 0o600)
        self._thread = start_thread(self._serve)
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _serve(self):
        while not self._over.is_set():
            try:
                sink = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                time.sleep(PIPE_EVERY_S)  # it has no reader yet
                continue
            # The next reader gets a pipe of its own: the reader of this one must not read the content twice.
            os.mkfifo(self.path + ".next", 0o600)
            os.rename(self.path + ".next", self.path)
            try:
                os.write(sink, self._content)  # small enough for a single write to a pipe
            except BrokenPipeError:
                pass  # the reader has closed the pipe
            finally:
                os.close(sink)


def note_of(image_id):
    """The path of the note about the copy of an image with the owners that its containers see."""
    return os.path.join(archive.folder("tried"), "owners-" + image_id.rpartition(":")[2])


def is_inside(name):
    """Whether a name in an archive stays inside the folder to which it is unpacked."""
    return not name.startswith("/") and ".." not in name.split("/")


def describe(found):
    """The description of an image for an answer, from that of docker or podman."""
    config = found.get("Config") or {}
    env = dict(entry.partition("=")[::2] for entry in config.get("Env") or [])
    identity = found["Id"]
    return {
        "id": identity if identity.startswith("sha256:") else "sha256:" + identity,
        "digests": found.get("RepoDigests") or [],
        "machine": found.get("Architecture") or "",
        "os": found.get("Os") or "",
        "path": env.get("PATH", ""),
        "python_path": env.get("PYTHONPATH", ""),
    }


def shorten(said, code):
    """The end of a failed command's output, or else its exit code."""
    text = said.decode("utf-8", "replace").strip()
    return text[-LONGEST_SAID:] or "exit code %d" % code


def start_thread(target):
    """Starts a thread that does not keep this process alive."""
    thread = threading.Thread(target=target)
    thread.daemon = True
    thread.start()
    return thread


if __name__ == "__main__":
    main()
