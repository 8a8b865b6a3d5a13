"""facts.sh in a real shell, and the parsing of its output."""

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from bootstrap.environment.facts import (
    Checked,
    FoundPython,
    LibraryDir,
    NodeFacts,
    gather_facts,
    parse_facts,
    render_facts_script,
)
from bootstrap.ssh.host import Output
from foundation.errors import ClusterError
from node_facts import HOST, SYSTEM_PATH, make_programs, run_shell

TEXT = """\
a login shell says=this
machine=x86_64
system=Ubuntu 22.04.5 LTS
glibc=2.35
cores=4
configured=3.9 /opt/my python/bin/python3
python=3.5 /usr/bin/python3
python=3.10 /usr/bin/python3.10
has=torch 2.5.1+cu124 12.4 1.26.4 3.11 /opt/my python/bin/python3
has=mxnet 1.9.1 - - 3.10 /usr/bin/python3.10
home=/home/ubuntu
missing=libgomp.so.1
missing=libquadmath.so.0
display=NVIDIA
gpu=8.6, 535.104.05, NVIDIA A10G
gpu=8.6, 535.104.05, NVIDIA A10G
library=libcuda.so.1
cuda=/usr/local/cuda-10.2/lib64 libcudart.so.10.2 libcublas.so.10
file=aa
file=bb
env=cc
setup=dd
pythons=ee
unresolved=cc checked 12ab
unresolved=cc libcudart.so.9.0
unresolved=ff checked 34cd
cluster_key=ssh-ed25519 AAAA cluster-internal demo
known_host=10.0.0.4 ssh-ed25519 A
known_host=10.0.0.5 ssh-ed25519 B
authorized=restrict,from="10.0.0.4" ssh-ed25519 AAAA cluster-internal
"""
MINIMAL = "machine=x86_64\ncores=1\npython=3.11 /usr/bin/python3\nhome=/h\n"


def look(home: Path, *, python: str = "auto", path: str = SYSTEM_PATH) -> NodeFacts:
    done = run_shell(render_facts_script(python), home, path=path)
    assert done.returncode == 0, done.stderr
    return parse_facts(done.stdout, node="here")


def test_facts_are_read() -> None:
    facts = parse_facts(TEXT, node="node-1")
    assert facts.gpus == (("8.6", "NVIDIA A10G"), ("8.6", "NVIDIA A10G"))
    assert (facts.driver, facts.displays) == ("535.104.05", ("NVIDIA",))
    assert (facts.glibc, facts.cores) == ((2, 35), 4)
    assert facts.python == "/usr/bin/python3.10"  # 3.5 cannot run our programs
    assert [python.version for python in facts.pythons] == [(3, 5), (3, 10)]
    assert facts.configured == FoundPython(path="/opt/my python/bin/python3", version=(3, 9))
    torch, mxnet = facts.frameworks
    assert (torch.name, torch.version, torch.cuda, torch.numpy) == ("torch", "2.5.1+cu124", (12, 4), "1.26.4")
    assert torch.python == FoundPython(path="/opt/my python/bin/python3", version=(3, 11))
    assert (mxnet.name, mxnet.cuda, mxnet.numpy) == ("mxnet", None, "")
    assert (facts.files, facts.envs, facts.trees) == ({"aa", "bb"}, {"cc"}, set())
    assert (facts.setups, facts.pythons_ready) == ({"dd"}, {"ee"})
    assert facts.authorized == ('restrict,from="10.0.0.4" ssh-ed25519 AAAA cluster-internal',)
    assert facts.cluster_key == "ssh-ed25519 AAAA cluster-internal demo"
    known_hosts = b"10.0.0.4 ssh-ed25519 A\n10.0.0.5 ssh-ed25519 B\n"
    assert facts.known_hosts_sha256 == hashlib.sha256(known_hosts).hexdigest()
    assert facts.missing_libraries == ("libgomp.so.1", "libquadmath.so.0")
    assert facts.libraries == {"libcuda.so.1"}
    names = frozenset(["libcudart.so.10.2", "libcublas.so.10"])
    assert facts.cuda_dirs == (LibraryDir(path="/usr/local/cuda-10.2/lib64", names=names),)
    assert facts.checked == {
        "cc": Checked(key="12ab", unresolved=("libcudart.so.9.0",)),
        "ff": Checked(key="34cd", unresolved=()),
    }


@pytest.mark.parametrize(
    ("line", "gpu"),
    [
        ("9.0, 550.1, NVIDIA H100 80GB HBM3", ("9.0", "NVIDIA H100 80GB HBM3")),
        (", 450.1, Tesla V100-SXM2-16GB", ("7.0", "Tesla V100-SXM2-16GB")),
        (", 450.1, Unheard of, 2", ("", "Unheard of, 2")),
    ],
)
def test_gpus_of_drivers_old_and_new(line: str, gpu: tuple[str, str]) -> None:
    assert parse_facts(f"{MINIMAL}gpu={line}\n", node="n").gpus == (gpu,)


@pytest.mark.parametrize(
    ("lines", "code", "error", "hint"),
    [
        ("Welcome\n", 1, "its login shell ended before it ran a command", "~/.bashrc"),
        ("Welcome\n", -1, "killed by a signal: facts.sh", ""),
        ("machine=x86_64\n", 0, "found no working Python 3", "apt-get install -y python3"),
        ("machine=x86_64\npython=3.5 /usr/bin/python3\n", 0, "found no working Python 3", "apt-get install -y python3"),
    ],
)
def test_a_node_that_cannot_be_set_up(lines: str, code: int, error: str, hint: str) -> None:
    connection = Mock(host=HOST, run=lambda *_, **__: Output(stdout=lines, stderr="", exit_code=code))
    with pytest.raises(ClusterError, match=f"{HOST.name}: {error}") as raised:
        gather_facts(connection, python="auto")
    assert hint in (raised.value.hint or "")


def test_facts_of_this_machine_are_read(tmp_path: Path) -> None:
    for name in (
        "files/aa/x.whl",
        "env/bb/.complete",
        "tree/cc/.complete",
        "tree/dd/unfinished",
        "python/ee/.complete",
        "runtime/ii/.complete",
        "runtime/jj/.complete",
        f"setup/{os.uname().nodename}/ff.done",
        f"setup/{os.uname().nodename}/gg.json",
        "setup/another-host/hh.done",  # which shares the home folder
    ):
        path = tmp_path / ".cluster" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / ".cluster" / "env" / "bb" / ".unresolved").write_text("checked k\nlibx.so.1\n")
    for name, python in (("ii", sys.executable), ("jj", "/no/such/python")):  # jj: the image's Python was removed
        (tmp_path / ".cluster" / "runtime" / name / "bin").mkdir()
        (tmp_path / ".cluster" / "runtime" / name / "bin" / "python").symlink_to(python)
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "authorized_keys").write_text("ssh-ed25519 U me\nrestrict ssh-ed25519 C cluster-internal\n")
    for _ in range(2):  # first without the cache, then with it
        facts = look(tmp_path)
        assert facts.home == str(tmp_path)
        assert facts.cores == os.cpu_count()
        assert (facts.files, facts.envs, facts.trees) == ({"aa"}, {"bb"}, {"cc"})
        assert (facts.pythons_ready, facts.setups, facts.runtimes) == ({"ee"}, {"ff"}, {"ii"})
        assert facts.checked == {"bb": Checked(key="k", unresolved=("libx.so.1",))}
        assert facts.authorized == ("restrict ssh-ed25519 C cluster-internal",)
        assert (facts.machine, facts.kernel) == (os.uname().machine, os.uname().release)


def test_changes_invalidate_cached_facts(tmp_path: Path) -> None:
    own = tmp_path / "bin"
    make_programs(own, nvidia_smi="exit 9")
    path = f"{own}:{SYSTEM_PATH}"
    assert look(tmp_path, path=path).gpus == ()
    make_programs(own, nvidia_smi='case "$1" in *compute_cap*) echo "8.6, 535.1, NVIDIA A10G" ;; esac')
    assert look(tmp_path, path=path).gpus == ()  # from the cache: no watched folder has changed
    known = tmp_path / ".cluster" / "known"
    lines = known.read_text().splitlines()
    known.write_text("\n".join([lines[0].replace("stamp=", "stamp=of another boot "), *lines[1:]]) + "\n")
    assert look(tmp_path, path=path).gpus == (("8.6", "NVIDIA A10G"),)
    os.utime(known, (1, 1))  # older than the folders of programs
    make_programs(own, nvidia_smi='case "$1" in *compute_cap*) exit 2 ;; *) echo "450.1, Tesla T4" ;; esac')
    facts = look(tmp_path, path=path)
    assert (facts.gpus, facts.driver) == ((("7.5", "Tesla T4"),), "450.1")


@pytest.mark.parametrize("folder", ["miniconda3/envs/mine", ".local"])
def test_a_framework_that_is_installed_later_is_found(tmp_path: Path, folder: str) -> None:
    def find() -> set[str]:
        return {found.version for found in look(tmp_path).frameworks if found.version.startswith("99.")}

    assert find() == set()
    time.sleep(0.01)  # a new mtime
    subprocess.run(("/usr/bin/python3", "-m", "venv", "--without-pip", str(tmp_path / folder)), check=True)
    assert find() == set()
    (torch,) = (site / "torch" for site in tmp_path.glob(f"{folder}/lib/python3*/site-packages"))
    for version in ("99.1", "99.2"):
        torch.mkdir(exist_ok=True)
        (torch / "__init__.py").touch()
        (torch / "version.py").write_text(f"__version__ = '{version}'\n")
        os.utime(torch.parent)
        assert find() == {version}


@pytest.mark.parametrize(("kind", "is_missing"), [("libc6,x86-64", False), ("libc6,AArch64", False), ("libc6", True)])
def test_the_systems_libraries(tmp_path: Path, kind: str, *, is_missing: bool) -> None:
    """Those of the 32-bit system on the same disk do not count."""
    own = make_programs(tmp_path / "bin", ldconfig=f"echo 'libstdc++.so.6 ({kind}) => /lib/libstdc++.so.6'")
    found = look(tmp_path, path=f"{own}:{SYSTEM_PATH}").missing_libraries
    assert ("libstdc++.so.6" in found) == is_missing


def test_cuda_is_found_where_conda_puts_it(tmp_path: Path) -> None:
    folder = tmp_path / "miniconda3" / "pkgs" / "cudatoolkit-10.2.89-h8f6ccaa_8" / "lib"
    folder.mkdir(parents=True)
    for name in ("libcudart.so.10.2", "libcublas.so.10", "libnpps.so.10"):
        (folder / name).touch()
    names = frozenset(["libcudart.so.10.2", "libcublas.so.10"])
    assert look(tmp_path).cuda_dirs == (LibraryDir(path=str(folder), names=names),)


@pytest.mark.parametrize(
    ("name", "file", "text", "found"),
    [
        (
            "torch",
            "version.py",
            "__version__ = '2.8.0+cu128'\ncuda: Optional[str] = '12.8'\n",
            ("2.8.0+cu128", (12, 8)),
        ),
        ("mxnet", "libinfo.py", '# x\n__version__ = "1.9.1"\n', ("1.9.1", None)),
    ],
)
def test_frameworks_are_found_without_importing_them(
    tmp_path: Path, name: str, file: str, text: str, found: tuple[str, tuple[int, int] | None]
) -> None:
    venv = tmp_path / "it's a venv"
    subprocess.run(("/usr/bin/python3", "-m", "venv", "--without-pip", str(venv)), check=True)
    (site,) = venv.glob("lib/python3*/site-packages")
    (site / name).mkdir()
    (site / name / "__init__.py").write_text("raise SystemExit('imported')")
    (site / name / file).write_text(text)
    python = f"{venv}/bin/python3"
    facts = look(tmp_path, python=python)
    assert facts.configured.path == python
    here = [(one.version, one.cuda) for one in facts.frameworks if one.python.path == python]
    assert here == [found]
