"""uv on the user's machine, with the package indexes of its settings and of pip's."""

import base64
import configparser
import netrc
import os
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from foundation.errors import ClusterError, render_last_lines

TIMEOUT_S = 30
PIP_SETTINGS = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "constraint": "UV_CONSTRAINT",
    "trusted-host": "UV_INSECURE_HOST",
    "retries": "UV_HTTP_RETRIES",
    "timeout": "UV_HTTP_TIMEOUT",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
}
"""Settings of pip, and the variables of uv that mean the same."""
INDEXES = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL")


class UvError(Exception):
    """What uv has printed about its failure."""


def run_uv(words: Sequence[str], *, folder: Path, environment: Mapping[str, str] | None = None) -> str:
    """The output of uv in a folder, where it finds the settings of a project. Raises UvError."""
    command = [sys.executable, "-P", "-m", "uv", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UvError(render_last_lines([line for line in done.stderr.splitlines() if line.strip()]))
    return done.stdout


def run_for_nodes(words: Sequence[str], *, folder: Path, links: Sequence[Path] = ()) -> str:
    """The output of a command of uv that takes packages for nodes from the indexes of this machine. Raises UvError.

    links: folders with more wheels, beside those of the settings, which the option --find-links would replace.
    """
    environment, no_index = find_settings(os.environ)
    if links:
        environment["UV_FIND_LINKS"] = ",".join([*filter(None, [environment.get("UV_FIND_LINKS")]), *map(str, links)])
    # uv needs no Python of the nodes' version, but would try to download one, for a minute and more.
    environment["UV_PYTHON_DOWNLOADS"] = "never"
    words = [*words, "--python", sys.executable, *(["--no-index"] if no_index else [])]
    return run_uv(words, folder=folder, environment=environment)


def find_settings(environ: Mapping[str, str]) -> tuple[dict[str, str], bool]:
    """The environment for uv, with pip's settings where uv has none of its own; and whether pip uses no index.

    pip takes the best version of all indexes, uv by default that of the first index that has the package. pip trusts
    the authorities of this system, uv by default only its own: not that of a company's proxy.
    """
    pip = _read_pip_settings(environ)
    found = {uv: " ".join(pip[name].split()) for name, uv in PIP_SETTINGS.items() if pip.get(name)}
    if "find-links" in pip:
        found["UV_FIND_LINKS"] = ",".join(pip["find-links"].split())
    if "UV_INDEX_URL" in environ:  # the older name of the default index
        found.pop("UV_DEFAULT_INDEX", None)
    no_index = pip.get("no-index", "").lower() in ("1", "true", "yes", "on")
    own = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    if _has_authorities():
        own["UV_SYSTEM_CERTS"] = "1"
    return {**own, **found, **environ}, no_index


def _has_authorities() -> bool:
    """Whether the system has certificate authorities: in a file, or, as on Ubuntu, in a folder, read when needed."""
    folder = ssl.get_default_verify_paths().capath
    in_file = ssl.create_default_context().cert_store_stats()["x509_ca"] > 0
    return in_file or (folder is not None and any(Path(folder).glob("*.0")))


def _read_pip_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The settings of pip for all its commands (https://pip.pypa.io/en/stable/topics/configuration/)."""
    home = Path(environ.get("HOME", "~")).expanduser()
    named = environ.get("PIP_CONFIG_FILE")
    folders = environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")
    files = [*(Path(folder) / "pip/pip.conf" for folder in folders), Path("/etc/pip.conf"), home / ".pip/pip.conf"]
    files += [Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip/pip.conf", Path(sys.prefix) / "pip.conf"]
    if named is not None:
        files = [] if named == os.devnull else [*files, Path(named)]
    parser = configparser.RawConfigParser()
    try:
        parser.read(files)
    except (OSError, ValueError, configparser.Error) as error:
        raise ClusterError(f"pip's settings cannot be read: {error}") from error
    found = {**dict(parser["global"])} if parser.has_section("global") else {}
    words = ((name[4:].replace("_", "-").lower(), value) for name, value in environ.items() if name.startswith("PIP_"))
    found |= {name: value for name, value in words if value}
    return {**found, "timeout": found.get("timeout") or found.get("default-timeout", "")}


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Sends a password only to its own host: an index may redirect to another one, such as S3, which refuses it."""

    def redirect_request(self, *args: Any) -> urllib.request.Request:
        return _make_request(args[-1])


def open_url(url: str) -> HTTPResponse:
    """The answer of an index, with the password for it in the settings or in ~/.netrc. Raises OSError."""
    environment, _ = find_settings(os.environ)
    every = environment.get("ALL_PROXY", "")
    proxies = dict.fromkeys(("http", "https"), every) if every and not every.startswith("socks") else {}
    opener = urllib.request.build_opener(
        _Redirects,
        urllib.request.ProxyHandler(proxies | urllib.request.getproxies()),
        urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=environment.get("SSL_CERT_FILE"))),
    )
    return cast("HTTPResponse", opener.open(_make_request(url), timeout=TIMEOUT_S))


def _make_request(url: str) -> urllib.request.Request:
    request = urllib.request.Request(url, headers={"User-Agent": "mxnet-cluster"})  # noqa: S310 - checked or uv's choice
    login = _find_login(url, find_settings(os.environ)[0])
    if login is not None:
        request.add_header("Authorization", f"Basic {base64.b64encode(':'.join(login).encode()).decode()}")
    return request


def _find_login(url: str, environment: Mapping[str, str]) -> tuple[str, str] | None:
    host = urlsplit(url).netloc
    for address in (word for name in INDEXES for word in environment.get(name, "").split()):
        index = urlsplit(address.partition("=")[2] if "=" in address.partition("://")[0] else address)
        if index.username is not None and index.netloc.rpartition("@")[2] == host:
            return unquote(index.username), unquote(index.password or "")
    try:
        found = netrc.netrc().authenticators(host.partition(":")[0])
    except (OSError, netrc.NetrcParseError):
        return None
    return (found[0], found[2] or "") if found is not None else None
