"""pack is killed while it writes: visible files are complete, and the next run ends with the same bytes."""

import subprocess

from folders import read_files
from photos import photo
from project import CLUSTER, Project
from waits import until


def session_of(pid: int) -> list[str]:
    told = subprocess.run(["ps", "-o", "args=", "-s", str(pid)], capture_output=True, text=True, check=False).stdout
    return [line for line in told.splitlines() if "<defunct>" not in line]


def test_killed_while_it_writes(project: Project) -> None:
    folder = project.directory
    (folder / "tmp").mkdir()
    project.env |= {"TMPDIR": str(folder / "tmp"), "XDG_CACHE_HOME": str(folder / "cache")}
    for number in range(24):
        path = folder / "photos" / str(number % 3) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        photo(300, 200, number).save(path)
    words = ("data", "pack", "photos", "out", "--resize", "64", "--shards", "6", "--processes", "2")
    project.run(*words)
    expected = read_files(folder / "out")
    again = (*words, "--replace")
    process = subprocess.Popen(
        [CLUSTER, *again], cwd=folder, env=project.environment(), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    until(lambda: [*(folder / "out").glob(".cluster-*/*")])
    process.kill()
    assert process.wait() < 0
    until(lambda: not session_of(process.pid), "a process outlives the one that was killed", timeout_s=20)
    finished = {
        name: content for name, content in read_files(folder / "out").items() if not name.startswith(".cluster-")
    }
    assert finished.items() <= expected.items()
    project.run(*again)
    assert read_files(folder / "out") == expected
    assert [*(folder / "tmp").iterdir(), *folder.rglob(".cluster-*")] == []
