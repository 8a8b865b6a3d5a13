"""Where checkpoints lie: a local folder or s3://. A file is there whole or not at all. Does not import MXNet.

S3 is spoken to by this project's own client, which lies beside the scripts on the nodes, and not by MXNet, of which
not every wheel can.
"""

import abc
import atexit
import os
import shutil
import sys
import tempfile
from typing import Any, Callable, Dict, Union

from common.errors import ScriptError

_NODE = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "node")
_TEMPORARY = ".partial"


class Place(abc.ABC):
    """Files whose names begin with one prefix. `base` is the last part of it, which file names begin with.

    Its methods raise ScriptError where the place refuses.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.base = prefix.rpartition("/")[2]

    def url(self, name: str) -> str:
        """The file's whole name, for people."""
        return self.prefix[: len(self.prefix) - len(self.base)] + name

    @abc.abstractmethod
    def sizes(self) -> Dict[str, int]:
        """Every file's size in bytes, by its name."""

    @abc.abstractmethod
    def draft(self, name: str) -> str:
        """A local path to write a new file's content to."""

    @abc.abstractmethod
    def put(self, name: str) -> None:
        """Make the draft of that name the file of that name, in one step and for good."""

    @abc.abstractmethod
    def local(self, name: str) -> str:
        """A local path with the file's content, as it is now."""

    @abc.abstractmethod
    def delete(self, name: str) -> None:
        """Remove the file."""

    def write(self, name: str, content: bytes) -> None:
        """Write a small file."""
        path = self.draft(name)
        try:
            with open(path, "wb") as file:
                file.write(content)
        except OSError as error:
            raise _refused(self, name, error) from error
        self.put(name)

    def read(self, name: str) -> bytes:
        """A small file's content."""
        with open(self.local(name), "rb") as file:
            return file.read()


class Folder(Place):
    """A local folder. What a killed process left half-written there is removed by the next one that saves."""

    def __init__(self, prefix: str) -> None:
        super(Folder, self).__init__(os.path.abspath(prefix))
        self._folder = os.path.dirname(self.prefix)

    def prepare(self) -> None:
        """Make the folder, and clean it of half-written files."""
        try:
            os.makedirs(self._folder, exist_ok=True)
            for name in os.listdir(self._folder):
                if name.startswith(f".{self.base}-") and name.endswith(_TEMPORARY):
                    os.remove(os.path.join(self._folder, name))
        except OSError as error:
            raise ScriptError(f"--model-prefix: the folder {self._folder} cannot be used: {error.strerror}") from error

    def sizes(self) -> Dict[str, int]:
        """As Place has it."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise _refused(self, self.base, error) from error
        paths = {name: os.path.join(self._folder, name) for name in names if name.startswith(self.base + "-")}
        return {name: os.path.getsize(path) for name, path in paths.items() if os.path.isfile(path)}

    def draft(self, name: str) -> str:
        """As Place has it."""
        return os.path.join(self._folder, f".{name}{_TEMPORARY}")

    def put(self, name: str) -> None:
        """As Place has it; the disk has it too when this returns."""
        try:
            with open(self.draft(name), "rb") as file:
                os.fsync(file.fileno())
            os.rename(self.draft(name), self.url(name))
            folder = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise _refused(self, name, error) from error

    def local(self, name: str) -> str:
        """As Place has it."""
        return self.url(name)

    def delete(self, name: str) -> None:
        """As Place has it."""
        try:
            os.remove(self.url(name))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _refused(self, name, error) from error


class Bucket(Place):
    """Objects of S3; `store` is object_store.Store.

    A job may write, but not delete: there an object is removed by one that is empty in its place, which costs nothing
    and counts as none.
    Drafts and copies are in a temporary folder until the process ends.
    """

    def __init__(self, prefix: str, store: Any, renewed: Callable[[], Any]) -> None:
        super(Bucket, self).__init__(prefix)
        self._store = store
        self._renewed = renewed
        # In the job's own folder, which is cleared away with it, should this process be killed.
        own = os.environ.get("CLUSTER_OUTPUT_DIR", "")
        self._folder = tempfile.mkdtemp(prefix="checkpoint-", dir=own if os.path.isdir(own) else None)
        atexit.register(self.close)

    def prepare(self) -> None:
        """Nothing has to be made beforehand."""

    def sizes(self) -> Dict[str, int]:
        """As Place has it."""
        listed = self._ask(self.base, lambda store: list(store.list(self.prefix + "-")))
        sizes = {entry.url.rpartition("/")[2]: entry.size_bytes for entry in listed if entry.size_bytes}
        return {name: size for name, size in sizes.items() if name.startswith(self.base + "-")}

    def draft(self, name: str) -> str:
        """As Place has it."""
        return os.path.join(self._folder, name)

    def put(self, name: str) -> None:
        """As Place has it."""
        self._ask(name, lambda store: store.put_file(self.draft(name), self.url(name)))
        os.remove(self.draft(name))

    def local(self, name: str) -> str:
        """As Place has it."""
        path = os.path.join(self._folder, "read-" + name)
        self._ask(name, lambda store: store.get_file(self.url(name), path))
        return path

    def delete(self, name: str) -> None:
        """As Place has it."""
        self._ask(name, lambda store: _delete(store, self.url(name)))

    def close(self) -> None:
        """Remove the temporary folder: nothing can be read or written any more."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _ask(self, name: str, request: Callable[[Any], Any]) -> Any:
        """What the request returns, made again with new credentials where those of the job's start have ended."""
        try:
            return request(self._store)
        except OSError as error:
            if getattr(error, "code", "") not in ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"):
                raise _refused(self, name, error) from error
            ended = error
        try:
            self._store = self._renewed()
            return request(self._store)
        except OSError as error:
            raise _refused(self, name, ended) from error


def open_place(prefix: str, *, to_write: bool) -> Union[Folder, Bucket]:
    """The place that --model-prefix names. Raises ScriptError where it cannot be used."""
    place: Union[Folder, Bucket]
    if not prefix.startswith("s3://"):
        place = Folder(prefix)
    else:
        if _NODE not in sys.path:
            sys.path.append(_NODE)
        import object_store  # noqa: PLC0415 - found only now

        try:
            place = Bucket(prefix, object_store.Store(os.environ), _renewed_store)
        except OSError as error:
            raise ScriptError(f"--model-prefix {prefix}: {error}") from error
    if to_write:
        place.prepare()
    return place


def _renewed_store() -> Any:
    """A store with the credentials that the instance profile gives now. Raises OSError where there are none."""
    import instance_credentials  # noqa: PLC0415 - found only where open_place has been
    import object_store  # noqa: PLC0415 - the same

    found = instance_credentials.read(instance_credentials.ADDRESS)
    keys = {
        "AWS_ACCESS_KEY_ID": found["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": found["SecretAccessKey"],
        "AWS_SESSION_TOKEN": found["Token"],
    }
    return object_store.Store(dict(os.environ, **keys))


def _delete(store: Any, url: str) -> None:
    try:
        store.delete(url)
    except OSError as error:
        if getattr(error, "code", "") != "AccessDenied":
            raise
        store.put_bytes(b"", url)


def _refused(place: Place, name: str, error: OSError) -> ScriptError:
    reason = str(error) if hasattr(error, "code") else str(error.strerror or error)
    return ScriptError(f"--model-prefix: {place.url(name)}: {reason}")
