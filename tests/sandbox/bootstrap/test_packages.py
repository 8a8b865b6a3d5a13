"""`[bootstrap] packages` from our own index: a requirements file, a range, and a package without a wheel."""

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from foundation.user_folders import cache_folder
from index_server import Index, make_source, make_wheel, serve_index
from project import Project, shipped

pytestmark = pytest.mark.sandbox

BACKEND = b"""
import os, sys, zipfile
METADATA = "Metadata-Version: 2.1\\nName: sourced\\nVersion: 1.5\\n"
def build_wheel(folder, *_):
    with open(os.path.expanduser("~/built"), "a") as stream:  # on the node that builds
        stream.write(os.environ["WORD"] + "\\n")  # which a set-up command exports
    if os.path.exists(os.path.expanduser("~/fail")):
        raise SystemExit("there is no compiler")
    info = "sourced-1.5.dist-info/"
    tag = "cp%d%d-none-linux_x86_64" % sys.version_info[:2]
    name = "sourced-1.5-" + tag + ".whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        wheel.writestr("sourced.py", "import part\\nwhere = %r\\n" % os.uname().nodename)
        wheel.writestr(info + "METADATA", METADATA + "Requires-Dist: part<3")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: false\\nTag: " + tag + "\\n")
        wheel.writestr(info + "RECORD", "")
    return name
def prepare_metadata_for_build_wheel(folder, *_):
    os.makedirs(os.path.join(folder, "sourced-1.5.dist-info"))
    with open(os.path.join(folder, "sourced-1.5.dist-info", "METADATA"), "w") as stream:
        stream.write(METADATA)
    return "sourced-1.5.dist-info"
"""
COMPILED = b"""
import os, zipfile
import mxnet
def build_wheel(folder, *_):
    name = "compiled-1.0-py3-none-any.whl"
    info = "compiled-1.0.dist-info/"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        wheel.writestr("compiled.py", "against = %r\\n" % mxnet.__version__)
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: compiled\\nVersion: 1.0\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return name
"""
PYPROJECT = b"[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"


@pytest.fixture
def index(two_nodes: Project, tmp_path: Path) -> Iterator[Index]:
    """An index with the wheels of the user's usual cache and our own."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for wheel in cache_folder().glob("wheels/*/*.whl"):
        if not (folder / wheel.name).exists():
            (folder / wheel.name).symlink_to(wheel)
    make_source(folder, "sourced-1.5.tar.gz", {"backend.py": BACKEND, "pyproject.toml": PYPROJECT})
    content = {"backend.py": COMPILED, "pyproject.toml": PYPROJECT, "CMakeLists.txt": b'python -c "import mxnet"'}
    make_source(folder, "compiled-1.0.tar.gz", content)
    for name in ("cmake-3.31.0", "ninja-1.11", "packaging-25.0", "psutil-7.0"):
        make_wheel(folder, f"{name}-py3-none-any.whl", {})
    for version in ("1.0", "2.0", "2.1", "3.0"):
        make_wheel(folder, f"part-{version}-py3-none-any.whl", {"part.py": f"version = '{version}'\n".encode()})
        make_wheel(folder, f"ranged-{version}-py3-none-any.whl", {"ranged.py": f"version = '{version}'\n".encode()})
    with serve_index(folder) as served:
        two_nodes.env = {
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": f"{served.url}/simple/",
            "PIP_TRUSTED_HOST": str(urlsplit(served.url).hostname),
            "PIP_EXTRA_INDEX_URL": "",
            "PIP_FIND_LINKS": "",
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        }
        try:
            yield served
        finally:
            two_nodes.env = {}
            two_nodes.write(shipped())
            shutil.rmtree(tmp_path / "cache", ignore_errors=True)


def ask(project: Project, code: str) -> list[str]:
    """The output of a Python program on each node."""
    done = project.run("exec", "--", "python", "-c", code)
    return sorted(line.partition("] ")[2] for line in done.stdout.splitlines())


@pytest.mark.slow
def test_every_node_gets_the_same_packages(two_nodes: Project, index: Index) -> None:
    part = hashlib.sha256((index.folder / "part-2.0-py3-none-any.whl").read_bytes()).hexdigest()
    folder = two_nodes.directory / "needs"  # not the shared folder itself, because hints name a requirements.txt in it
    folder.mkdir()
    (folder / "limits.txt").write_text("part!=2.1\n")
    (folder / "requirements.txt").write_text(
        "# ours\n-c limits.txt\nsourced  # no wheel\ncompiled\nnever; python_version < '3'\nmxnet<1.6\n"
        f"part \\\n  --hash=sha256:{part}\n"
    )
    packages = ["-r needs/requirements.txt", "ranged>=2,<3"]
    two_nodes.write(shipped(bootstrap__packages=packages, bootstrap__setup=["export WORD=once"]))
    two_nodes.run("exec", "--", "touch", "fail")
    failed = two_nodes.run("up", code=1).stderr
    assert "building a wheel from sourced-1.5.tar.gz" in failed
    assert "there is no compiler" in failed
    assert "build-essential" in failed
    two_nodes.run("exec", "--", "rm", "-f", "fail", "built")

    output = two_nodes.run("up").stderr
    assert "packages: mxnet<1.6 is ignored" in output
    assert "node-0: building a wheel from sourced-1.5.tar.gz" in output
    assert ask(two_nodes, "import ranged, part; print(ranged.version, part.version)") == ["2.1 2.0"] * 2
    against = ask(two_nodes, "import compiled, mxnet; print(compiled.against == mxnet.__version__)")
    assert against == ["True"] * 2, "the build of a package that imports MXNet sees the environment's"
    [built_on] = set(ask(two_nodes, "import sourced; print(sourced.where)"))
    assert built_on == two_nodes.run("exec", "--node", "node-0", "--", "hostname").stdout.partition("] ")[2].strip()
    counted = two_nodes.run("exec", "--", "sh", "-c", "cat built 2>/dev/null | wc -l").stdout
    assert sorted(line.partition("] ")[2] for line in counted.splitlines()) == ["0", "1"]

    make_wheel(index.folder, "ranged-2.9-py3-none-any.whl", {"ranged.py": b"version = '2.9'\n"})
    assert "there was nothing to do" in two_nodes.run("up").stderr
    assert ask(two_nodes, "import ranged; print(ranged.version)") == ["2.1"] * 2
