"""pack is killed while it writes: visible files are complete, and the next run ends with the same bytes."""

import os
import subprocess

from folders import read_files
from photos import photo
from project import CLUSTER, Project
from waits import until


def test_killed_while_it_writes(project: Project) -> None:
    folder = project.directory
    (folder / "tmp").mkdir()
    project.env |= {"TMPDIR": str(folder / "tmp"), "XDG_CACHE_HOME": str(folder / "cache")}
    for number in range(24):
        photo(300, 200, number).save(folder / f"{number}.jpg")
    (folder / "a.lst").write_text("".join(f"{number}\t{number % 3}\t{number}.jpg\n" for number in range(24)))
    words = ("data", "pack", "a.lst", "out", "--resize", "64", "--shards", "6", "--processes", "2")
    project.run(*words)
    expected = read_files(folder / "out")
    again = (*words, "--replace")
    last = folder / "23.jpg"
    last.rename(folder / "kept.jpg")
    os.mkfifo(last)  # the command waits for its content
    process = subprocess.Popen(
        [CLUSTER, *again], cwd=folder, env=project.environment(), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    until(lambda: [*(folder / "out").glob(".cluster-*/finished/*.rec")])
    process.kill()
    assert process.wait() < 0
    finished = {
        name: content for name, content in read_files(folder / "out").items() if not name.startswith(".cluster-")
    }
    assert finished.items() <= expected.items()
    (folder / "kept.jpg").replace(last)
    project.run(*again)
    assert read_files(folder / "out") == expected
    assert [*(folder / "tmp").iterdir(), *folder.rglob(".cluster-*")] == []
