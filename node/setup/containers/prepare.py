"""Prepares a node for jobs in containers: finds its engine, pulls the image, inspects it, and tries it.

Requests and answers are JSON, one per line. The verb is a request's first key. Answers come in order: {"failed": text},
or as below, and {"alive": true} every two seconds. The end of stdin ends this program and the command that it runs.

    {"find": "auto"}                 {"engine": words or null, "reasons": [why not]}
    {"inspect": IMAGE}               {"image": {"id", "digests", "path", "python_path"} or null}
    {"map": IMAGE_ID}                {"done": true}: gives the image's files the owners that containers of this
                                     node's user see
    {"pull": IMAGE, "login": LOGIN}  {"image": as above}
    {"take": FOLDER, "image": ID, "command": WORDS}
                                     {"taken": path}: runs a command in a container, and unpacks the archive that it
                                     prints to FOLDER below the home folder, unless that exists
    {"try": CONTAINER, "command": WORDS}
                                     {"done": true}: runs a command in a container, see protocol.Container
    {"save": IMAGE_ID}               {"sha256", "name", "size"} of the image's file in the store
    {"load": "SHA256/NAME"}          {"done": true}: the image of a file in the store
    {"forget": SHA256}               {"done": true}: the file has been removed

LOGIN is null or {"server", "username", "password"}. The engine reads the password from its stdin, which is in memory:
after a kill, nothing of it is left.
"""

import base64
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NoReturn

from foundation.decode import convert
from node.protocol import Container
from node.setup import process_tree, setup_env
from node.setup.containers import engine
from node.setup.messages import serve

ANSWER_TIMEOUT_S, TRY_TIMEOUT_S = 30, 120
LONGEST_MESSAGE = 4000
READ_BYTES = 1 << 20
IMAGE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The PATH for images that set none."""
Message = dict[str, Any]


class Failed(Exception):
    """A request failed; the text is the reason."""


def main() -> NoReturn:
    """Answers requests until stdin ends, which ends the engine's command that runs, too."""
    serve(Node().answer)


class Node:
    """This node and its engine. Its methods do_... raise Failed."""

    def __init__(self) -> None:
        self._engine: list[str] = []

    def answer(self, request: Message) -> Message:
        """Does what a request's verb, its first key, says. Returns the answer."""
        try:
            answer: Message | None = getattr(self, f"do_{next(iter(request))}")(*request.values())
        except Failed as error:
            return {"failed": str(error)}
        return answer or {"done": True}

    def do_find(self, wanted: str) -> Message:
        """Finds the first engine that works. wanted: "auto", "docker" or "podman"."""
        # Otherwise engines would create the folders for mounts, in the containers' home folder, as another user.
        inside = [os.path.join(engine.HOME_FOLDER, ".cluster", name) for name in engine.MOUNT_FOLDERS]
        for name in (engine.PYTHONS_FOLDER, *inside):
            os.makedirs(os.path.join(os.path.expanduser("~"), name), 0o700, exist_ok=True)
        self._engine, reasons = [], list[str]()
        for words in ([engine.DOCKER], engine.DOCKER_AS_ROOT, [engine.PODMAN]):
            is_missing = words == engine.DOCKER_AS_ROOT and "docker: not installed" in reasons
            if wanted not in ("auto", words[-1]) or is_missing:
                continue
            refusal = self._try(words)
            if refusal is None:
                self._engine = words
                break
            reasons.append(f"{' '.join(words)}: {refusal}")
        return {"engine": self._engine or None, "reasons": reasons}

    def _try(self, words: list[str]) -> str | None:
        """Why an engine does not work; None if it does."""
        try:
            _, out, err = self._call([*words, "--version"], timeout_s=ANSWER_TIMEOUT_S)
            if words[-1] == engine.DOCKER and b"podman" in (out + err).lower():
                return "is podman"  # podman-docker installs it under docker's name
            # `info` takes longer with podman, and succeeds without a daemon with older versions of docker.
            code, out, err = self._call([*words, "ps", "--quiet"], timeout_s=ANSWER_TIMEOUT_S)
        except FileNotFoundError:
            return "not installed"
        except subprocess.TimeoutExpired:
            return f"does not answer within {ANSWER_TIMEOUT_S} s"
        except OSError as error:
            return str(error)
        lines = (err.strip() or out.strip()).decode("utf-8", "replace").splitlines() or [f"exit code {code}"]
        return None if code == 0 else lines[-1].strip()

    def do_inspect(self, reference: str) -> Message:
        """Describes an image, if the node has it."""
        code, out, _ = self._call([*self._engine, "image", "inspect", reference])
        return {"image": describe(json.loads(out)[0]) if code == 0 else None}

    def do_pull(self, reference: str, login: Mapping[str, str] | None) -> Message:
        """Pulls an image, and describes it."""
        proxies = setup_env.find_proxies(os.environ)  # for podman: docker's daemon has its own
        with hold_credentials(login) if login is not None else nullcontext((None, subprocess.DEVNULL)) as (path, stdin):
            self._run(engine.pull_words(self._engine, reference, path), env=proxies, stdin=stdin)
        return self.do_inspect(reference)

    def do_map(self, image: str) -> None:
        """Has podman copy the image with the owners that its containers see, unless it has that copy.

        podman does so for the first container of an image. Otherwise a job's first process would do it, within the
        limit for a start: 5 s for 300 MB on an idle disk. If the kernel maps owners, podman copies nothing.
        """
        if engine.is_podman(self._engine) and os.getuid() != 0:
            name = f"cluster-owners-{os.getpid()}"
            try:
                self._run(engine.create_words(self._engine, image, name))
            finally:
                self._call(engine.remove_words(self._engine, [name]))

    def do_try(self, container: Message, command: list[str]) -> None:
        """Runs a command in a container."""
        self._try_command(convert(container, Container), command)

    def do_take(self, name: str, image: str, command: list[str]) -> Message:
        """Takes files out of an image."""
        folder = os.path.join(os.path.expanduser("~"), name)
        if os.path.isdir(folder):
            return {"taken": folder}
        out = self._try_command(Container(engine=tuple(self._engine), image=image), command)
        draft = f"{folder}.{os.getpid()}"
        try:
            os.makedirs(draft, 0o700)
            with tarfile.open(fileobj=io.BytesIO(out)) as packed:
                plain = [one for one in packed.getmembers() if one.isfile() and is_inside(one.name)]
                packed.extractall(draft, plain)  # noqa: S202 - only plain files inside the folder
            os.rename(draft, folder)
        except OSError:
            if not os.path.isdir(folder):  # another command, which has the same image, has just taken them
                raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return {"taken": folder}

    def do_save(self, image: str) -> Message:
        """Saves an image to the store, for other nodes. The next set-up removes what a kill leaves in incoming/."""
        name, digest = f"image-{image.rpartition(':')[2][:12]}.tar", hashlib.sha256()
        try:
            with tempfile.TemporaryDirectory(dir=make_folder("incoming")) as unfinished:
                path = os.path.join(unfinished, name)
                with open(path, "wb+") as stream:  # owned by this user, even if the engine's client runs as root
                    self._run([*self._engine, "save", image], stdout=stream.fileno())
                    stream.seek(0)
                    for data in iter(lambda: stream.read(READ_BYTES), b""):
                        digest.update(data)
                    size = stream.tell()
                os.rename(path, os.path.join(make_folder(f"files/{digest.hexdigest()}"), name))
        except OSError as error:
            raise Failed(str(error)) from None
        return {"sha256": digest.hexdigest(), "name": name, "size": size}

    def do_load(self, name: str) -> None:
        """Loads the image in a file of the store."""
        self._run([*self._engine, "load", "--quiet", "--input", os.path.join(make_folder("files"), name)])

    def do_forget(self, sha256: str) -> None:
        """Removes a file from the store."""
        shutil.rmtree(os.path.join(make_folder("files"), sha256), ignore_errors=True)

    def _try_command(self, container: Container, command: list[str]) -> bytes:
        """Runs a command in a container to its end. Returns its stdout. Raises Failed."""
        name = f"cluster-check-{os.urandom(6).hex()}"
        words, passed = engine.run_words(container, command, {}, name=name, user=(os.getuid(), os.getgid()))
        try:
            return self._run(words, env=passed, timeout_s=TRY_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._call(engine.remove_words(container.engine, [name]))
            raise Failed(f"it did not end within {TRY_TIMEOUT_S} s") from None

    def _run(self, words: Sequence[str], **options: Any) -> bytes:
        """Like _call, but returns the stdout. Raises Failed with the end of its output, or else its exit code."""
        code, out, err = self._call(words, **options)
        if code != 0:
            text = (err or out or b"").decode("utf-8", "replace").strip()
            raise Failed(text[-LONGEST_MESSAGE:] or f"exit code {code}")
        return out

    def _call(
        self,
        words: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.PIPE,
    ) -> tuple[int, bytes, bytes]:
        """Runs a command of the engine, which dies with this process. Returns (exit code, stdout, stderr)."""
        own = {**(env or {}), **engine.environment(os.environ)}
        child = process_tree.start(words, own, "/", stdin=stdin, stdout=stdout, stderr=subprocess.PIPE)
        try:
            out, err = child.communicate(timeout=timeout_s)
        except BaseException:  # what sudo has started survives it
            process_tree.signal_all([pid for pid, _, _ in process_tree.find_descendants()], signal.SIGKILL)
            child.wait()  # and not for its output, which a process that was just being started may hold open
            raise
        return child.returncode, out, err


def make_folder(name: str) -> str:
    """The path of a folder below ~/.cluster. Creates it if it does not exist."""
    path = os.path.join(os.path.expanduser("~"), ".cluster", name)
    os.makedirs(path, mode=0o700, exist_ok=True)
    return path


@contextmanager
def hold_credentials(login: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """Holds a user's password in memory, in the format of `docker login`.

    Yields the path for the engine, which leads to its stdin, and the descriptor for that. Each reader opens it anew.
    """
    auth = base64.b64encode(f"{login['username']}:{login['password']}".encode()).decode()
    server = login["server"]
    names = [server] if server != "docker.io" else [server, "https://index.docker.io/v1/"]
    with tempfile.TemporaryDirectory(prefix="cluster-") as folder, open(os.memfd_create("login"), "wb") as memory:
        memory.write(json.dumps({"auths": {name: {"auth": auth} for name in names}}).encode())
        memory.flush()
        path = os.path.join(folder, "config.json")
        os.symlink("/proc/self/fd/0", path)
        yield path, memory.fileno()


def is_inside(name: str) -> bool:
    """Whether a name in an archive stays inside the folder to which it is unpacked."""
    return not name.startswith("/") and ".." not in name.split("/")


def describe(found: Mapping[str, Any]) -> Message:
    """The description of an image for an answer, from that of docker or podman."""
    config = found.get("Config") or {}
    env = dict(entry.partition("=")[::2] for entry in config.get("Env") or [])
    identity = found["Id"]
    return {
        "id": identity if identity.startswith("sha256:") else "sha256:" + identity,
        "digests": found.get("RepoDigests") or [],
        "path": env.get("PATH") or IMAGE_PATH,
        "python_path": env.get("PYTHONPATH", ""),
    }
