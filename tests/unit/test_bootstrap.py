"""Deciding what nodes lack: facts, wheels, plans, scripts. No node is needed for it."""

import errno
import hashlib
import io
import os
import signal
import subprocess
import tarfile
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootstrap.bundle import COMPAT_FILE, Bundle, BundleFile, describe_file, fetch_bundle
from bootstrap.connection import Host, Output, command_error, connect, explain, may_be_booting, quote_command
from bootstrap.facts import NodeFacts, parse_facts
from bootstrap.host_keys import HostKeyPins
from bootstrap.internal_ssh import authorize_script, authorized_line, known_hosts_text
from bootstrap.plan import (
    PACKAGES,
    InstallLibraries,
    MakeClusterKey,
    MakeEnvironment,
    SendFile,
    UnpackTree,
    plan_node,
    render_script,
)
from bootstrap.side_by_side import on_all
from bootstrap.tree import FileTree
from bootstrap.verify import parse_verdicts
from bootstrap.wheels import WheelTarget, choose_wheels, platform_tags
from provision.errors import ClusterError, ConnectError
from provision.mxnet_wheels import CPU_WHEEL, GPU_WHEEL
from provision.progress import silent

HOST = Host(name="node-1", instance_id="i-1", address="198.18.0.2", private_ip="10.0.0.5", user="ubuntu", is_head=False)
FACTS_TEXT = """\
machine=x86_64
system=Ubuntu 22.04.5 LTS
glibc=2.35
cores=4
python=/usr/bin/python3
python_version=3.10
disk_free_kib=50000000
home=/home/ubuntu
missing=libgomp.so.1
missing=libquadmath.so.0
gpu=8.6, NVIDIA A10G
gpu=8.6, NVIDIA A10G
file=aa
file=bb
env=cc
authorized=restrict,from="10.0.0.4" ssh-ed25519 AAAA cluster-internal
"""
FACTS = NodeFacts(
    machine="x86_64",
    system="Debian GNU/Linux 12 (bookworm)",
    glibc=(2, 36),
    cores=2,
    python="/usr/bin/python3",
    python_version=(3, 11),
    disk_free_kib=50_000_000,
    home="/home/ubuntu",
    missing_libraries=(),
    gpus=(),
    files=frozenset(),
    envs=frozenset(),
    trees=frozenset(),
    cluster_key=None,
    known_hosts_sha256=None,
    authorized=(),
)
TARGET = WheelTarget(python_version=(3, 11), machine="x86_64", glibc=(2, 36), requirements=(CPU_WHEEL.requirement,))
BUNDLE = Bundle(
    target=TARGET,
    files=tuple(
        BundleFile(path=Path(name), sha256=hashlib.sha256(name.encode()).hexdigest(), size_bytes=1000)
        for name in ("mxnet-1.7.0.post2-py2.py3-none-manylinux2014_x86_64.whl", "uv-1-none.whl", COMPAT_FILE)
    ),
)
TREE = FileTree(content={"node/role.py": b"print()\n"})


def test_facts_are_read() -> None:
    facts = parse_facts(FACTS_TEXT, node="node-1")
    assert facts.gpus == (("8.6", "NVIDIA A10G"), ("8.6", "NVIDIA A10G"))
    assert (facts.python_version, facts.glibc, facts.cores) == ((3, 10), (2, 35), 4)
    assert (facts.files, facts.envs, facts.trees) == ({"aa", "bb"}, {"cc"}, set())
    assert facts.authorized == ('restrict,from="10.0.0.4" ssh-ed25519 AAAA cluster-internal',)
    assert facts.cluster_key is None
    assert facts.missing_libraries == ("libgomp.so.1", "libquadmath.so.0")


def test_facts_of_this_machine_are_read(tmp_path: Path) -> None:
    """The real script, run here by the real shell."""
    script = (Path(__file__).parents[2] / "bootstrap" / "node" / "facts.sh").read_text()
    env = {"HOME": str(tmp_path), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    for folder in ("files/aa/x.whl", "env/bb/.complete", "tree/cc/.complete", "tree/dd/unfinished"):
        path = tmp_path / ".cluster" / folder
        path.parent.mkdir(parents=True)
        path.touch()
    done = subprocess.run(
        ["/bin/sh", "-c", script.replace("__PYTHON__", "auto")], env=env, capture_output=True, text=True, check=True
    )
    facts = parse_facts(done.stdout, node="here")
    assert facts.home == str(tmp_path)
    assert facts.python_version >= (3, 6)
    assert facts.disk_free_kib > 0
    assert (facts.files, facts.envs, facts.trees) == ({"aa"}, {"bb"}, {"cc"})


def test_facts_wait_for_a_set_up_that_a_killed_command_has_left_running(tmp_path: Path) -> None:
    folder = tmp_path / ".cluster"
    folder.mkdir()
    script = (Path(__file__).parents[2] / "bootstrap" / "node" / "facts.sh").read_text()
    env = {"HOME": str(tmp_path), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    # As render_script's script holds it: for as long as any of its programs runs.
    with subprocess.Popen(
        ["/bin/sh", "-c", "cd .cluster; exec 9<.; flock 9; echo; read -r _; mkdir -p env/aa; : >env/aa/.complete"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as set_up:
        assert set_up.stdin is not None
        assert set_up.stdout is not None
        set_up.stdout.readline()
        with subprocess.Popen(
            ["/bin/sh", "-c", script.replace("__PYTHON__", "auto")], env=env, stdout=subprocess.PIPE, text=True
        ) as look:
            with pytest.raises(subprocess.TimeoutExpired):
                look.wait(timeout=1)
            set_up.stdin.write("\n")
            set_up.stdin.close()
            facts = parse_facts(look.communicate()[0], node="here")
    assert facts.envs == {"aa"}


@pytest.mark.parametrize("lines", ["", "python=\n", "python=/opt/python\npython_version=\n"])
def test_a_node_without_python_is_named(lines: str) -> None:
    with pytest.raises(ClusterError, match="node-7: no working Python"):
        parse_facts(lines, node="node-7")


@pytest.mark.parametrize(
    ("change", "mxnet", "first", "numpy"),
    [
        ({}, "auto", CPU_WHEEL.requirement, "numpy<1.24"),
        ({"python_version": (3, 8)}, "auto", CPU_WHEEL.requirement, "numpy<1.24"),
        ({"python_version": (3, 12)}, "auto", CPU_WHEEL.requirement, "numpy<2"),
        ({"gpus": (("8.6", "A10G"),)}, "auto", GPU_WHEEL.requirement, "numpy<1.24"),
        ({"gpus": (("7.5", "T4"),)}, "auto", GPU_WHEEL.requirement, "numpy<1.24"),
        ({"gpus": (("7.0", "V100"),)}, "auto", GPU_WHEEL.requirement, "numpy<1.24"),
        ({"gpus": (("8.9", "L4"),)}, "auto", GPU_WHEEL.requirement, "numpy<1.24"),
        ({"gpus": (("9.0", "H100"),)}, "mxnet==1.9.1", "mxnet==1.9.1", "numpy<1.24"),
    ],
)
def test_wheels_are_chosen_for_the_node(change: dict[str, object], mxnet: str, first: str, numpy: str) -> None:
    target = choose_wheels(replace(FACTS, **change), mxnet=mxnet, packages=["six==1.16.0"], node="node-0")  # type: ignore[arg-type]
    assert target.requirements[:2] == (first, numpy)
    assert target.requirements[-1] == "six==1.16.0"
    assert any("cudnn" in name for name in target.requirements) == (first == GPU_WHEEL.requirement)


@pytest.mark.parametrize(
    ("change", "mxnet", "said"),
    [
        ({"python_version": (3, 7)}, "auto", "Python 3.7"),
        ({"python_version": (3, 13)}, "auto", "Python 3.13"),
        ({"machine": "aarch64"}, "auto", "aarch64"),
        ({"gpus": (("9.0", "NVIDIA H100"),)}, "auto", "no MXNet wheel has code for NVIDIA H100"),
        ({"gpus": (("3.7", "Tesla K80"),)}, "auto", '"auto" has no MXNet wheel for Tesla K80'),
        ({"gpus": (("7.5", "T4"),)}, "mxnet-cu90==1.6.0.post0", "CUDA 9.0 came before the T4"),
    ],
)
def test_nodes_that_no_wheel_runs_on_are_refused(change: dict[str, object], mxnet: str, said: str) -> None:
    with pytest.raises(ClusterError, match=said):
        choose_wheels(replace(FACTS, **change), mxnet=mxnet, packages=[], node="node-0")  # type: ignore[arg-type]


def test_platform_tags_end_at_the_nodes_glibc() -> None:
    tags = platform_tags(replace(TARGET, glibc=(2, 17)))
    assert tags[0] == "manylinux_2_17_x86_64"
    assert {"manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"} <= set(tags)
    assert "manylinux2014_x86_64" not in platform_tags(replace(TARGET, glibc=(2, 12)))


def plan(facts: NodeFacts, *, is_head: bool = False) -> list[type]:
    steps = plan_node(facts, bundle=BUNDLE, tree=TREE, cluster="demo", is_head=is_head, node="node-0")
    return [type(step) for step in steps]


def test_plans_hold_what_is_missing_and_nothing_else() -> None:
    hashes = frozenset(file.sha256 for file in BUNDLE.files)
    assert plan(FACTS) == [SendFile, SendFile, SendFile, MakeEnvironment, UnpackTree]
    assert plan(FACTS, is_head=True)[-1] is MakeClusterKey
    assert plan(replace(FACTS, files=hashes)) == [MakeEnvironment, UnpackTree]
    assert plan(replace(FACTS, files=frozenset([BUNDLE.files[0].sha256]))) == [
        SendFile,
        SendFile,
        MakeEnvironment,
        UnpackTree,
    ]
    assert plan(replace(FACTS, envs=frozenset([BUNDLE.digest]))) == [UnpackTree]
    done = replace(FACTS, envs=frozenset([BUNDLE.digest]), trees=frozenset([TREE.digest]))
    assert plan(done) == []
    assert plan(replace(done, missing_libraries=("libgomp.so.1",))) == [InstallLibraries]
    assert plan(done, is_head=True) == [MakeClusterKey]
    assert plan(replace(done, cluster_key="ssh-ed25519 AAAA"), is_head=True) == []


def test_a_full_disk_is_seen_before_anything_is_sent() -> None:
    with pytest.raises(ClusterError, match="0 MiB of disk are free at /home/ubuntu"):
        plan(replace(FACTS, disk_free_kib=3))


def test_the_script_of_a_plan_is_valid_shell(tmp_path: Path) -> None:
    facts = replace(FACTS, missing_libraries=tuple(PACKAGES))
    steps = plan_node(facts, bundle=BUNDLE, tree=TREE, cluster="demo", is_head=True, node="node-0")
    script = tmp_path / "script"
    script.write_text(render_script(steps))
    subprocess.run(["/bin/sh", "-n", str(script)], check=True)


def run_script(steps: list[object], home: Path) -> subprocess.CompletedProcess[str]:
    env = {"HOME": str(home), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    text = render_script(steps)  # type: ignore[arg-type]
    return subprocess.run(["/bin/sh", "-c", text], env=env, capture_output=True, text=True, check=False)


def test_a_tree_arrives_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    incoming = tmp_path / ".cluster" / "incoming"
    incoming.mkdir(parents=True)
    steps: list[object] = [UnpackTree(tree=TREE)]
    (incoming / TREE.digest).write_bytes(TREE.pack()[:-1] + b"x")
    refused = run_script(steps, tmp_path)
    assert refused.returncode == 1
    assert "arrived damaged" in refused.stderr
    assert not (tmp_path / ".cluster" / "tree" / TREE.digest).exists()
    (incoming / TREE.digest).write_bytes(TREE.pack())
    done = run_script(steps, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / ".cluster" / "tree" / TREE.digest / "node" / "role.py").read_bytes() == b"print()\n"
    assert not incoming.exists()


@given(st.dictionaries(st.from_regex(r"[a-z]{1,8}(/[a-z]{1,8})?\.py", fullmatch=True), st.binary(max_size=50)))
def test_a_tree_is_named_by_its_content_whatever_its_order(content: dict[str, bytes]) -> None:
    again = FileTree(content=dict(reversed(list(content.items()))))
    assert FileTree(content=content).digest == again.digest
    other = FileTree(content={**content, "zz.py": b"1"})
    assert other.digest != again.digest


def make_wheel(folder: Path, name: str) -> None:
    distribution, version = name.split("-")[:2]
    with zipfile.ZipFile(folder / name, "w") as wheel:
        wheel.writestr(f"{distribution}-{version}.dist-info/METADATA", f"Name: {distribution}\nVersion: {version}\n")
        wheel.writestr(f"{distribution}-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\n")


def test_a_bundle_is_fetched_once_by_the_real_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    monkeypatch.setattr("bootstrap.bundle.version", lambda _: "9.9")
    for name in ("thing-1.0-py3-none-any.whl", "uv-9.9-py3-none-manylinux2014_x86_64.whl"):
        make_wheel(shelf, name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    target = replace(TARGET, requirements=("thing==1.0",))
    first = fetch_bundle(target, cache=tmp_path / "cache", report=silent)
    assert [file.name for file in first.files[:2]] == sorted(path.name for path in shelf.iterdir())
    assert first.files[-1].name == COMPAT_FILE
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    assert fetch_bundle(target, cache=tmp_path / "cache", report=silent) == first
    with pytest.raises(ClusterError, match="pip could not fetch") as raised:
        fetch_bundle(replace(target, requirements=("other==1",)), cache=tmp_path / "cache", report=silent)
    assert "other==1" in raised.value.message
    assert not list((tmp_path / "cache" / "bundles").glob(".fetching-*"))


@pytest.mark.parametrize("damage", ["wheel cut short", "wheel gone", "manifest cut short", "manifest without files"])
def test_a_damaged_bundle_is_fetched_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    monkeypatch.setattr("bootstrap.bundle.version", lambda _: "9.9")
    for name in ("thing-1.0-py3-none-any.whl", "uv-9.9-py3-none-manylinux2014_x86_64.whl"):
        make_wheel(shelf, name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    target = replace(TARGET, requirements=("thing==1.0",))
    whole = fetch_bundle(target, cache=tmp_path / "cache", report=silent)
    wheel = whole.files[0].path
    manifest = wheel.parent / "bundle.json"
    match damage:
        case "wheel cut short":
            wheel.write_bytes(wheel.read_bytes()[:10])
        case "wheel gone":
            wheel.unlink()
        case "manifest cut short":
            manifest.write_bytes(manifest.read_bytes()[:10])
        case _:
            manifest.write_text("[]")
    assert fetch_bundle(target, cache=tmp_path / "cache", report=silent) == whole
    assert [describe_file(file.path) for file in whole.files] == list(whole.files)


def test_a_file_is_described_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    assert describe_file(tmp_path / "x").sha256 == hashlib.sha256(b"abc").hexdigest()


@pytest.mark.parametrize("key", ["!!!!", "AAAA", "AAAAC3NzaC1lZDI1NTE5AAAAIQ=="])
def test_a_damaged_pin_is_named_and_nothing_is_trusted(tmp_path: Path, key: str) -> None:
    pins = HostKeyPins(tmp_path / "known_hosts")
    pins.pin(HOST.instance_id, "ssh-ed25519", key)
    with pytest.raises(ClusterError, match=r"the host key of i-1 \(node-1\) is damaged"):
        connect(HOST, private_key=tmp_path / "key", pins=pins)


def test_pins_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "known_hosts").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ClusterError, match="known_hosts:1: not a pinned host key"):
        HostKeyPins(tmp_path / "known_hosts").find("i-1")


def test_a_command_that_a_signal_ended_is_told_from_one_that_failed() -> None:
    killed = command_error(HOST, "sleep 9", Output(stdout="", stderr="", exit_code=-1))
    assert killed.message.startswith("node-1: killed by a signal: sleep 9")


def test_a_tree_takes_long_names() -> None:
    name = f"user/{'long' * 50}.py"
    with tarfile.open(fileobj=io.BytesIO(FileTree(content={name: b"x"}).pack())) as archive:
        assert archive.getnames() == [name]


def test_host_keys_are_pinned_and_never_replaced(tmp_path: Path) -> None:
    pins = HostKeyPins(tmp_path / "cluster" / "known_hosts")
    assert pins.find("i-1") is None
    threads = [threading.Thread(target=pins.pin, args=(f"i-{n}", "ssh-ed25519", f"AAA{n}")) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [pins.find(f"i-{n}") for n in range(20)] == [("ssh-ed25519", f"AAA{n}") for n in range(20)]
    with pytest.raises(ClusterError, match="pinned to another host key"):
        pins.pin("i-1", "ssh-ed25519", "BBBB")
    pins.keep_only(["i-3"])
    assert pins.path.read_text() == "i-3 ssh-ed25519 AAA3\n"
    assert pins.path.stat().st_mode & 0o077 == 0
    pins.path.write_text("half line\n")
    with pytest.raises(ClusterError, match="not a pinned host key"):
        pins.find("i-3")


def test_the_clusters_key_is_accepted_from_the_head_for_commands_alone() -> None:
    line = authorized_line("ssh-ed25519 AAAA cluster-internal demo", head_ip="10.0.0.4")
    assert line == 'restrict,from="10.0.0.4" ssh-ed25519 AAAA cluster-internal'
    assert authorize_script(replace(FACTS, authorized=(line,)), line=line, known_hosts=None) == ""
    text = known_hosts_text({"10.0.0.5": ("ssh-ed25519", "B"), "10.0.0.4": ("ssh-ed25519", "A")})
    assert text == "10.0.0.4 ssh-ed25519 A\n10.0.0.5 ssh-ed25519 B\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    current = replace(FACTS, authorized=(line,), known_hosts_sha256=digest)
    assert authorize_script(current, line=line, known_hosts=text) == ""
    assert authorize_script(replace(current, known_hosts_sha256="0"), line=line, known_hosts=text) != ""


def test_an_old_key_of_the_cluster_gives_way_and_the_users_stay(tmp_path: Path) -> None:
    keys = tmp_path / ".ssh" / "authorized_keys"
    keys.parent.mkdir()
    keys.write_text("ssh-ed25519 USER me@laptop\nrestrict ssh-ed25519 OLD cluster-internal\n")
    (tmp_path / ".cluster" / "ssh").mkdir(parents=True)
    line = authorized_line("ssh-ed25519 NEW x", head_ip="10.0.0.4")
    script = authorize_script(FACTS, line=line, known_hosts="10.0.0.4 ssh-ed25519 A\n")
    subprocess.run(["/bin/sh", "-c", script], env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, check=True)
    assert keys.read_text().splitlines() == ["ssh-ed25519 USER me@laptop", line]
    assert keys.stat().st_mode & 0o077 == 0
    assert (tmp_path / ".cluster" / "ssh" / "known_hosts").read_text() == "10.0.0.4 ssh-ed25519 A\n"


def key() -> paramiko.PKey:
    return paramiko.ECDSAKey.generate()


@pytest.mark.parametrize(
    ("error", "said", "may_pass"),
    [
        (OSError(errno.EHOSTUNREACH, "x"), "no route", True),
        (ConnectionRefusedError(errno.ECONNREFUSED, "x"), "connection refused", True),
        (TimeoutError("timed out"), "no answer on port 22", True),
        (paramiko.AuthenticationException("no"), "does not accept the cluster's key for user ubuntu", True),
        (paramiko.SSHException("banner"), "ssh failed: banner", True),
        (EOFError(), "ssh failed: EOFError", True),
        (
            paramiko.ssh_exception.NoValidConnectionsError(
                {("h", 22): ConnectionRefusedError(errno.ECONNREFUSED, "x")}
            ),
            "connection refused",
            True,
        ),
        (paramiko.BadHostKeyException("h", key(), key()), "host key has changed", False),
    ],
)
def test_a_failed_connection_says_why(error: Exception, said: str, *, may_pass: bool) -> None:
    text = explain(HOST, error)
    assert said in text
    assert "node-1 (i-1, ubuntu@198.18.0.2)" in text
    assert may_be_booting(error) is may_pass


def test_a_failed_command_shows_host_command_code_and_last_lines() -> None:
    output = Output(stdout="".join(f"line {n}\n" for n in range(50)), stderr="the end\n", exit_code=3)
    message = command_error(HOST, "make it", output).message
    assert message.startswith("node-1: exit code 3 from: make it\n")
    assert message.splitlines()[-1] == "  | the end"
    assert len(message.splitlines()) == 11


@given(st.lists(st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), max_size=20)))
def test_every_word_reaches_a_shell_as_it_is(words: list[str]) -> None:
    line = quote_command(["printf", "%s\\0", *words], {"A": "x y"})
    done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, check=True)
    assert done.stdout.decode() == "".join(f"{word}\0" for word in words or [""])


def test_all_failures_are_collected_and_raised_once() -> None:
    tried: list[int] = []

    def work(number: int) -> None:
        tried.append(number)
        if number % 2:
            raise ConnectError(f"node-{number} is gone", hint="cluster status")

    with pytest.raises(ClusterError, match="2 of 4 nodes failed") as raised:
        on_all([0, 1, 2, 3], work, name=lambda number: f"node-{number}")
    assert sorted(tried) == [0, 1, 2, 3]
    assert "node-1 is gone" in raised.value.message
    assert "node-3 is gone" in raised.value.message


def test_ctrl_c_does_not_wait_for_nodes_that_do_not_answer() -> None:
    never = threading.Event()
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    ctrl_c = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
    ctrl_c.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            on_all([1, 2], lambda _: never.wait(), name=str)
    finally:
        ctrl_c.join()
        signal.signal(signal.SIGUSR1, before)
        never.set()


@pytest.mark.parametrize(
    ("stdout", "code", "gpus", "error"),
    [
        ('{"device": "cpu(0)", "values": [[3.0, 3.0, 3.0], [3.0, 3.0, 3.0]], "version": "1.7.0"}', 0, 0, None),
        ('{"device": "cpu(0)", "values": [[3.0, 3.0, 3.0], [3.0, 3.0, 4.0]], "version": "1.7.0"}', 0, 0, "came out"),
        ('{"device": "cpu(0)", "values": [[3.0, 3.0, 3.0], [3.0, 3.0, 3.0]], "version": "1.7.0"}', 0, 2, "sees none"),
        ('{"device": "import mxnet", "error": "libcudart.so.9.0: cannot open"}', 0, 1, "libcudart.so.9.0"),
        ("", -11, 0, "exit code -11"),
    ],
)
def test_verdicts(stdout: str, code: int, gpus: int, error: str | None) -> None:
    (verdict,) = parse_verdicts(Output(stdout=stdout, stderr="", exit_code=code), node="node-0", gpus=gpus)
    if error is None:
        assert verdict.error is None
    else:
        assert error in (verdict.error or "")


@pytest.mark.parametrize(
    ("tool", "code", "said"), [("exit 0", 0, ""), ("exit 100", 1, "libgomp.so.1"), (None, 1, "libgomp.so.1")]
)
def test_a_missing_library_is_installed_or_named(tmp_path: Path, tool: str | None, code: int, said: str) -> None:
    """The package tool is a stand-in: no test installs anything on the machine that it runs on."""
    programs = tmp_path / "bin"
    programs.mkdir()
    stand_ins = {"sudo": 'echo "$@" >>"$HOME/calls"; shift; exec "$@"', "env": 'shift; exec "$@"'}
    if tool is not None:
        stand_ins["apt-get"] = tool
    for name, body in stand_ins.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    for name in ("mkdir", "rmdir", "sh", "flock"):
        (programs / name).symlink_to(f"/usr/bin/{name}")
    (tmp_path / ".cluster").mkdir()
    done = subprocess.run(
        ["/bin/sh", "-c", render_script([InstallLibraries(names=("libgomp.so.1",))])],
        env={"HOME": str(tmp_path), "PATH": str(programs)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert said in done.stderr
    if code == 0:
        assert "install -y --no-install-recommends libgomp1" in (tmp_path / "calls").read_text()
