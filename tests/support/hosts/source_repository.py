"""A git repository with the layout of MXNet's: a Makefile, submodules' folders, tools, and python/setup.py."""

import subprocess
from pathlib import Path

MAKEFILE = """\
lib/libmxnet.so: src/answer.c
\tmkdir -p lib
\t@echo "compiling for $(USE_BLAS), S3 $(USE_S3), by $$BUILDER"
\t$(CC) -shared -fPIC -DS3=$(USE_S3) -o $@ $<
"""
LIBINFO = """\
import os

__version__ = "1.7.0"


def find_lib_path():
    here = os.path.dirname(os.path.abspath(os.path.expanduser(__file__)))
    paths = [os.path.join(here, "libmxnet.so"), os.path.join(here, "../../lib/libmxnet.so")]
    return [path for path in paths if os.path.isfile(path)]
"""
SETUP = """\
import os
from setuptools import find_packages, setup

libinfo_py = os.path.join(os.path.dirname(__file__), "mxnet/libinfo.py")
libinfo = {"__file__": libinfo_py}
exec(compile(open(libinfo_py, "rb").read(), libinfo_py, "exec"), libinfo, libinfo)
setup(
    name="mxnet",
    version=libinfo["__version__"],
    packages=find_packages(),
    data_files=[("mxnet", [libinfo["find_lib_path"]()[0]])],
    install_requires=["numpy<2.0.0,>1.16.0"],
    zip_safe=False,
)
"""
FILES = {
    "Makefile": MAKEFILE,
    "src/answer.c": "int answer(void) { return 40 + S3 + 1; }\n",
    "tools/launch.py": "print('launched')\n",
    "3rdparty/dmlc-core/tracker/dmlc_tracker/__init__.py": "",
    "3rdparty/dmlc-core/tracker/dmlc_tracker/tracker.py": "PORT = 9091\n",
    "python/setup.py": SETUP,
    "python/mxnet/libinfo.py": LIBINFO,
    "python/mxnet/__init__.py": "import ctypes\nfrom .libinfo import find_lib_path\n"
    "answer = ctypes.CDLL(find_lib_path()[0]).answer()\n",
}


def git(repository: Path, *words: str) -> str:
    command = ["git", "-C", str(repository), "-c", "user.name=t", "-c", "user.email=t@example.com", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def write_repository(repository: Path) -> None:
    """Makes the repository, with one commit on the branch v1.7.x."""
    for name, text in FILES.items():
        path = repository / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(repository, "init", "--quiet", "--initial-branch", "v1.7.x")
    commit(repository)


def commit(repository: Path) -> None:
    """Commits all changes."""
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", "a state of it")
