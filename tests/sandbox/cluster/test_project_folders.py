"""Projects in folders with unusual names. test_existing_hosts.py has one with quotes, blanks, `@`, `:` and `%41`."""

from pathlib import Path

import pytest

from foundation.progress import silent
from odd_words import CHECK, VALUE, WORDS
from project import REPOSITORY, Project, configure
from sandbox import control

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]


@pytest.mark.parametrize("name", ["-x", "l" * 250, "link/below"], ids=["dash", "long", "link"])
def test_a_job_and_files(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    directory = tmp_path / name
    directory.mkdir()
    project = Project(directory)
    text = (REPOSITORY / "cluster.toml").read_text()
    project.write(configure(text, framework="none", launcher="env", script="own.py"))
    (directory / "own.py").write_text(CHECK)
    try:
        project.run("up")
        done = project.run("train", "--env", f"ODD={VALUE}", "--", "python", "own.py", *WORDS)
        assert done.stdout.count("words arrived") == 2, done.stdout
        project.run("cp", "own.py", "node-1:a b")
        project.run("cp", "node-1:a b", "back")
        assert (directory / "back").read_text() == CHECK
        (directory / "%41 ä").mkdir()
        (directory / "%41 ä" / "a:b").write_text(CHECK)
        project.run("data", "put", "--create-bucket", "%41 ä/", "s3://folder-of-a-project/")
        project.run("data", "get", "s3://folder-of-a-project/", "./-from")
        assert (directory / "-from/a:b").read_text() == CHECK
        project.run("down", "--yes")
    finally:
        control.reset(directory, report=silent)
