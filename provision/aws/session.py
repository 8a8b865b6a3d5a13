"""boto3, with our loader, TLS and retries. Its import takes long: commands connect to their nodes before it."""

import gzip
import ssl
import threading
from pathlib import Path
from typing import Any

import boto3
import botocore.httpsession
from botocore.config import Config
from botocore.loaders import JSONFileLoader, Loader
from urllib3.util.ssl_ import create_urllib3_context

from foundation.decode import decode

PATIENT = Config(connect_timeout=10, read_timeout=60, retries={"mode": "standard", "total_max_attempts": 5})
BRIEF = Config(connect_timeout=3, read_timeout=10, retries={"mode": "standard", "total_max_attempts": 3})
"""For services that `up` does not require."""
ONCE = Config(connect_timeout=10, read_timeout=60, retries={"mode": "standard", "total_max_attempts": 1})


def make_session(region: str) -> boto3.session.Session:
    """Returns a session with this region, and the environment's credentials."""
    return boto3.session.Session(region_name=region)


def _make_tls_context(**options: Any) -> ssl.SSLContext:
    """Returns urllib3's TLS context, which reads each file of authorities once.

    botocore shares a context between the connections of a client, and urllib3 reads the file again for each connection.
    OpenSSL crashes if another thread connects meanwhile (https://github.com/boto/botocore/issues/3164).
    """
    context = create_urllib3_context(**options)
    read, lock, load = set[tuple[Any, ...]](), threading.Lock(), context.load_verify_locations

    def load_once(cafile: Any = None, capath: Any = None, cadata: Any = None) -> None:
        with lock:
            if (cafile, capath, cadata) not in read:
                load(cafile, capath, cadata)
                read.add((cafile, capath, cadata))

    context.load_verify_locations = load_once  # type: ignore[method-assign]
    return context


class _ModelLoader(JSONFileLoader):
    """Reads botocore's descriptions of services: json with OrderedDict takes 0.06 s longer for that of EC2."""

    def load_file(self, file_path: str) -> Any:
        """Returns the content of `file_path`.json or .json.gz; None if there is no such file."""
        plain, compressed = Path(f"{file_path}.json"), Path(f"{file_path}.json.gz")
        if plain.is_file():
            return decode(plain.read_bytes(), dict[str, Any])
        return decode(gzip.decompress(compressed.read_bytes()), dict[str, Any]) if compressed.is_file() else None


Loader.FILE_LOADER_CLASS = _ModelLoader
botocore.httpsession.create_urllib3_context = _make_tls_context  # type: ignore[assignment]  # the stubs name options
