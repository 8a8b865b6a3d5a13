"""What is slow to import stays out of the way of those who do not use it: `cluster train` is to begin at once."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "without"),
    [
        ("cluster.main", ("msgspec", "boto3", "paramiko", "rich")),
        ("cluster.commands.train", ("msgspec", "boto3", "paramiko", "rich")),
        ("cluster.session", ("boto3", "botocore", "s3fs", "bootstrap.apply")),
        ("cluster.launching", ("boto3", "botocore", "s3fs", "pathspec", "train.job", "cluster.attach")),
        ("cluster.steps", ("rich",)),
        ("cluster.config", ("boto3", "click", "dataclasses", "difflib", "pathspec", "pydantic", "sandbox.faults")),
        ("train.answering", ("paramiko", "s3fs", "cryptography")),
    ],
)
def test_a_module_is_without_what_it_does_not_need(module: str, without: tuple[str, ...]) -> None:
    program = f"import sys, {module}; print(*sorted(set(sys.modules) & set({without!r})))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
