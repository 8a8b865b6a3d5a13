"""Images for containers, built on this machine from Debian's packages and Python wheels, without a registry.

Each image has a few uncompressed layers. All images share the first layer, a small Debian with Python. Layers are made
once, below the user's cache folder.
"""

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from foundation.file_lock import locked

CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
PACKAGES = (
    "python3",
    "bash",
    "dash",
    "coreutils",
    "util-linux",
    "sed",
    "grep",
    "libgomp1",
    "libquadmath0",
    "libstdc++6",
)
MXNET = ("mxnet==1.7.0.post2", "numpy==1.23.5")
UV = str(Path(sys.executable).parent / "uv")
SITE = "usr/local/lib/python{}/dist-packages"
USRMERGED = ("bin", "sbin", "lib", "lib64")
NOT_NEEDED = re.compile(
    r"usr/share/(doc|man|info|locale|lintian)/|etc/python|usr/lib/python3/dist-packages/.*pyc$|"
    r".*/dist-packages/(torch/(include|share|test)|.*/tests?|.*\.dist-info/licenses)/"
)
MADE_AT = 1_600_000_000  # a fixed time, so that the same content gives the same image
PASSWD = "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"


@dataclass(frozen=True)
class Layer:
    """An uncompressed tar file. sha256: the digest of its content."""

    path: Path
    sha256: str

    @property
    def size(self) -> int:
        return self.path.stat().st_size


@dataclass(frozen=True)
class Image:
    """An image of a few layers. env: the variables of its environment, as NAME=VALUE. user: as its USER line has it."""

    layers: tuple[Layer, ...]
    env: tuple[str, ...] = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8")

    user: str = ""

    @property
    def config(self) -> bytes:
        return _json(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {"Env": list(self.env), "Cmd": ["/bin/bash"], "User": self.user},
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.sha256}" for layer in self.layers]},
            }
        )

    @property
    def id(self) -> str:
        return _digest(self.config).removeprefix("sha256:")

    @property
    def manifest(self) -> bytes:
        return _json(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": {"mediaType": CONFIG, "digest": _digest(self.config), "size": len(self.config)},
                "layers": [
                    {"mediaType": LAYER, "digest": f"sha256:{one.sha256}", "size": one.size} for one in self.layers
                ],
            }
        )

    @property
    def digest(self) -> str:
        """The digest of the manifest: "sha256:..."."""
        return _digest(self.manifest)


def write_archive(image: Image, path: Path, name: str) -> None:
    """Writes the file that `docker save NAME` would write."""
    layers = [f"{one.sha256}.tar" for one in image.layers]
    with tarfile.open(path, "w") as tar:
        _add(tar, "config.json", image.config)
        for layer, inside in zip(image.layers, layers, strict=True):
            tar.add(layer.path, inside)
        _add(tar, "manifest.json", _json([{"Config": "config.json", "RepoTags": [name], "Layers": layers}]))


def plain_image() -> Image:
    return Image(layers=(_base().layer,))


def mxnet_image() -> Image:
    """An image with MXNet, and a USER line that would keep its processes from reading the nodes' files."""
    base = _base()
    words = ("--python-version", base.python, "--only-binary", ":all:", *MXNET)
    layer = _layer("-".join(MXNET), lambda target: _by_uv(target, words), base.python)
    return Image(layers=(base.layer, layer), user="1234")


def _by_uv(target: Path, words: Sequence[str]) -> None:
    """Installs with uv, because pip does not resolve MXNet's requirements, which are older than NumPy's wheels."""
    subprocess.run([UV, "pip", "install", "--quiet", "--no-config", "--target", target, *words], check=True)


# -- layers ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Base:
    layer: Layer
    python: str


def _base() -> _Base:
    """Debian's packages and their dependencies, downloaded by `apt-get` from the machine's own distribution."""
    with _locked() as cache:
        made = cache / _file_name("base", *PACKAGES)
        if not made.exists():
            with tempfile.TemporaryDirectory(dir=cache) as folder:
                _download(PACKAGES, Path(folder), with_all=True)
                layer = Path(folder) / "layer.tar"
                _write(layer, lambda tar: _merge(sorted(Path(folder).glob("*.deb")), tar))
                layer.rename(made)
        base = Layer(made, _sha256_of(made))
    return _Base(base, _python_in(made))


def _python_in(path: Path) -> str:
    with tarfile.open(path) as tar:
        return next(found[1] for name in tar.getnames() if (found := re.fullmatch(r"usr/bin/python(3\.\d+)", name)))


def _download(packages: Sequence[str], folder: Path, *, with_all: bool) -> None:
    """Downloads packages. with_all: also all of their dependencies, even those that this machine has."""
    (folder / "partial").mkdir()
    words = ["apt-get", "--yes", "--quiet", "--option", "APT::Sandbox::User=root"]
    if with_all:
        (folder / "status").touch()
        words += ["--option", f"Dir::State::status={folder / 'status'}", "--option", f"Dir::Cache::archives={folder}"]
        words += ["install", "--no-install-recommends", "--download-only", *packages]
    else:
        words += ["download", *packages]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _merge(packages: Sequence[Path], tar: tarfile.TarFile) -> None:
    """Merges packages into one tree, with /bin and the like as links into /usr.

    Adds the files that the packages' scripts would write.
    """
    names = set[str]()
    for name in USRMERGED:
        _add_link(tar, name, f"usr/{name}")
    for package in packages:
        content = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(content)) as source:
            for member in source:
                name = _merged(member.name)
                if name in names or name in {"", *USRMERGED} or NOT_NEEDED.match(name):
                    continue
                names.add(name)
                member.name, member.mtime = name, MADE_AT
                if member.islnk():
                    member.linkname = _merged(member.linkname)
                tar.addfile(member, source.extractfile(member) if member.isreg() else None)
    _add(tar, "etc/passwd", PASSWD.encode())
    _add(tar, "etc/group", b"root:x:0:\nnogroup:x:65534:\n")


def _merged(name: str) -> str:
    path = PurePosixPath(name.removeprefix("./"))
    parts = [part for part in path.parts if part != "."]
    return "/".join(["usr", *parts] if parts[:1] and parts[0] in USRMERGED and len(parts) > 1 else parts)


def _layer(name: str, install: Callable[[Path], None], python: str) -> Layer:
    """A layer with Python packages in the folder where the base's Python looks for them."""
    with _locked() as cache:
        made = cache / _file_name(name, python)
        if not made.exists():
            with tempfile.TemporaryDirectory(dir=cache) as folder:
                install(Path(folder))
                _write(made, lambda tar: _add_tree(tar, Path(folder), SITE.format(python)))
        return Layer(made, _sha256_of(made))


def _file_name(*recipe: str) -> str:
    return f"{hashlib.sha256(repr((recipe, NOT_NEEDED.pattern)).encode()).hexdigest()[:16]}.tar"


def _add_tree(tar: tarfile.TarFile, folder: Path, below: str) -> None:
    for path in sorted(folder.rglob("*")):
        name = f"{below}/{path.relative_to(folder)}"
        if NOT_NEEDED.match(name if path.is_file() else f"{name}/") or path.is_dir():
            continue
        tar.add(path, name, recursive=False, filter=_plain)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    member.mtime = MADE_AT
    return member


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(content), 0o644, MADE_AT
    tar.addfile(member, io.BytesIO(content))


def _add_link(tar: tarfile.TarFile, name: str, target: str) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode, member.mtime = tarfile.SYMTYPE, target, 0o777, MADE_AT
    tar.addfile(member)


def _write(path: Path, fill: Callable[[tarfile.TarFile], None]) -> None:
    unfinished = path.with_suffix(".unfinished")
    with tarfile.open(unfinished, "w", format=tarfile.PAX_FORMAT) as tar:
        fill(tar)
    unfinished.rename(path)


# -- the cache ---------------------------------------------------------------------------------------------------------


@contextmanager
def _locked() -> Iterator[Path]:
    made = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cluster-tests" / "images"
    made.mkdir(parents=True, exist_ok=True)
    with locked(made / "lock"):
        yield made


def program_of_package(package: str, path: str) -> Path:
    """The path of a program from a Debian package, which is unpacked but not installed."""
    with _locked() as cache:
        folder = cache / package
        if not (folder / path).exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            _download([package], folder, with_all=False)
            (deb,) = folder.glob("*.deb")
            subprocess.run(["dpkg-deb", "--extract", deb, folder], check=True)
        return folder / path


def _sha256_of(path: Path) -> str:
    """The digest of a file's content, cached in a file beside it."""
    known = path.with_suffix(".sha256")
    if not known.exists() or known.stat().st_mtime < path.stat().st_mtime:
        with path.open("rb") as stream:
            known.write_text(hashlib.file_digest(stream, "sha256").hexdigest())
    return known.read_text()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
