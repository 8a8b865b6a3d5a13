"""Starts stage.py and gives it orders, as a worker's Python does."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.programs import program_words
from s3_server import REGION


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    process: subprocess.Popen[str]

    def begin(self, uri: str, part: tuple[int, int] | None = None) -> None:
        """Asks for data, without waiting for the answer."""
        self.send(uri=uri, part=part, shuffle_mib=0)

    def send(self, **order: Any) -> None:
        """Gives an order, without waiting for the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"number": 7, **order}) + "\n")
        self.process.stdin.flush()

    def ask(self, uri: str, part: tuple[int, int] | None = None) -> dict[str, Any]:
        self.begin(uri, part)
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """The answer to the oldest order without one."""
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert answer.pop("number") == 7
        return answer

    def save(self, url: str, content: bytes) -> dict[str, Any]:
        """Writes an object as MXNet's files are written; returns the last answer."""
        self.send(draft=url)
        draft = Path(self.answer()["path"])
        draft.write_bytes(content)
        self.send(upload=str(draft), to=url)
        answer = self.answer()
        assert not draft.exists()
        return answer

    def read(self, uri: str) -> list[bytes]:
        """The contents of the files for a URI."""
        answer = self.ask(uri)
        assert "path" in answer, answer
        return [Path(path).read_bytes() for path in answer["path"].split(";")]


@contextmanager
def staging(url: str, cache: Path, **env: str) -> Iterator[Stage]:
    """Runs stage.py until the block ends."""
    given = {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "S3_REGION": REGION,
        "AWS_ENDPOINT_URL": url,
        "CLUSTER_DATA_CACHE_DIR": str(cache),
    }
    words = program_words("stage")
    with subprocess.Popen(
        words, env=given | env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Stage(process=process)
        finally:
            if process.poll() is None:
                process.communicate(timeout=20)


def find_left(cache: Path) -> list[str]:
    """The names of the files in a cache's folder, except its objects and its lock."""
    return [path.name for name in ("incoming", "users") for path in (cache / name).iterdir()]


def find_held(cache: Path) -> int:
    """The total size of a cache's objects in bytes."""
    return sum(path.stat().st_size for path in (cache / "objects").rglob("*") if path.is_file() and path.name != "meta")
