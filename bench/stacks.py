"""How long `cluster stacks` stops a rank that burns CPU, on a sandbox node whose user may not use sudo.

Each look is at a program of Python that does nothing else. This machine reads its state every millisecond: "t" is that
of a program that another one has stopped to read its memory.
"""

import os
import tempfile
import threading
import time
from pathlib import Path

from bench.support.jobs import Cluster

LOOKS = 20
WAYS = {"all ranks": (), "--rank 0": ("--rank", "0"), "--rank 0 --native": ("--rank", "0", "--native")}
BURNS = "while True:\n    pass\n"
NO_SUDO = "sudo rm /etc/sudoers.d/90-cloud-init-users; ! sudo -n true 2>/dev/null"


def run() -> str:
    """Runs the benchmark and returns its section of RESULTS.md."""
    with tempfile.TemporaryDirectory(prefix="cluster-bench-") as folder:
        cluster = Cluster(Path(folder), 'framework = "none"')
        (cluster.folder / "burns.py").write_text(BURNS)
        try:
            cluster.run("up", "--nodes", "1")
            cluster.ssh(cluster.find_nodes()[0]["public_ip"], NO_SUDO)
            words = ("-n", "1", "--launcher", "env", "--kv-store", "none", "--detach", "--", "python3", "burns.py")
            job = cluster.run("train", *words).strip()
            pid = find_program(job)
            found = {way: [look(cluster, pid, words) for _ in range(LOOKS)] for way, words in WAYS.items()}
            cluster.run("stop", job)
        finally:
            cluster.run("sandbox", "stop", "--yes")
    load = f"{LOOKS} looks each; kernel.yama.ptrace_scope: {read_scope()}; load average {os.getloadavg()[0]:.1f}."
    lines = ["## Stacks of a rank that burns CPU", "", load, "", "| `cluster stacks` | longest stop, ms | looks |"]
    lines += ["|---|---|---|", *(f"| {way} | {1000 * max(stops):.0f} | {LOOKS} |" for way, stops in found.items())]
    return "\n".join([*lines, "", "- all: `sudo python -m bench stacks`", ""])


def read_scope() -> str:
    """Returns the kernel's rule who may read another program, or that it has none."""
    path = Path("/proc/sys/kernel/yama/ptrace_scope")
    return path.read_text().strip() if path.exists() else "none"


def find_program(job: str) -> int:
    """Waits for the job's program. Returns its pid on this machine."""
    wanted = f"CLUSTER_JOB_ID={job}".encode()
    while True:
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
                if words[-2:-1] == [b"burns.py"] and wanted in (folder / "environ").read_bytes():
                    return int(folder.name)
            except OSError:  # it has ended
                continue
        time.sleep(0.1)


def look(cluster: Cluster, pid: int, words: tuple[str, ...]) -> float:
    """Takes stacks. Returns how long the program was stopped at most, in seconds."""
    is_done, stops, began = threading.Event(), [0.0], 0.0

    def watch() -> None:
        nonlocal began
        while not is_done.is_set():
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            now = time.monotonic()
            began = (began or now) if state == "t" else 0.0
            stops.append(now - began if began else 0.0)
            time.sleep(0.001)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        assert "burns.py:" in cluster.run("stacks", *words)
    finally:
        is_done.set()
        watching.join()
    return max(stops)
