import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from foundation.errors import ClusterError
from foundation.thread_pool import map_in_threads
from provision.files import TOKEN_LIFETIME_S, ClusterFiles
from provision.membership import derive_launch_key


@pytest.fixture
def files(tmp_path: Path) -> ClusterFiles:
    return ClusterFiles(tmp_path / "state" / "demo")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_the_owner_can_read_the_key(files: ClusterFiles) -> None:
    public_key = files.make_key()
    assert public_key.startswith("ssh-ed25519 ")
    assert (mode(files.private_key), mode(files.root)) == (0o600, 0o700)
    assert files.make_key() == files.find_public_key() == public_key
    assert [path.name for path in files.root.iterdir()] == ["id_ed25519"]


def test_keys_that_cannot_be_used_are_kept(files: ClusterFiles) -> None:
    files.make_key()
    subprocess.run(
        ["ssh-keygen", "-p", "-q", "-N", "secret", "-f", str(files.private_key)], check=True, capture_output=True
    )
    with pytest.raises(ClusterError, match="without passphrase"):
        files.find_public_key()
    files.private_key.write_bytes(b"not a key")
    with pytest.raises(ClusterError, match="not an OpenSSH private key"):
        files.make_key()
    assert files.private_key.read_bytes() == b"not a key"


def token(files: ClusterFiles, digest: str, now: float = 1000.0) -> str:
    return files.begin_launch(digest, indices=(0, 1), now=now).token


def test_keeps_a_token_for_its_request(files: ClusterFiles) -> None:
    """For as long as EC2 knows it."""
    first = token(files, "a")
    assert token(ClusterFiles(files.root), "a") == first  # as in another process
    assert token(files, "b") != first
    assert [(launch.digest, launch.indices, launch.started_at) for launch in files.launches()] == [
        ("a", (0, 1), 1000.0),
        ("b", (0, 1), 1000.0),
    ]
    files.forget_launch("b")
    assert token(files, "a", now=1000.0 + TOKEN_LIFETIME_S - 1) == first
    assert token(files, "a", now=1000.0 + TOKEN_LIFETIME_S + 1) != first
    assert len(files.launches()) == 1


def test_instances_stay_known_without_their_token(files: ClusterFiles) -> None:
    """A launch may end with its response, be found by its token, or be replaced by a new request."""
    answered, found, _ = (token(files, digest) for digest in ("answered", "found", "left"))
    files.note_launched("answered", ["i-1"])
    files.note_launched("left", ["i-4"])
    files.forget_launches({answered: {"i-1"}, found: {"i-2", "i-3"}}, tokens={answered, found})
    assert [launch.digest for launch in files.launches()] == ["left"]
    token(files, "left", now=1000.0 + TOKEN_LIFETIME_S + 1)
    files.note_instances(["i-5"])
    public_key = files.make_key()
    files.known_hosts.write_text("i-6 ssh-ed25519 AAAA\n\ni-7 ssh-ed25519 BBBB\n")
    known = ClusterFiles(files.root).known_instances()
    assert known.instance_ids == {f"i-{number}" for number in range(1, 8)}
    assert known.tokens == {launch.token for launch in files.launches()}
    assert (known.public_key, known.launch_key) == (public_key, derive_launch_key(files.private_key.read_bytes()))


def test_commands_note_jobs_at_the_same_time(files: ClusterFiles) -> None:
    jobs = [f"job-{n}" for n in range(40)]
    map_in_threads(lambda job, _: files.note_copied(job), jobs, threads=20)
    assert sorted(set(files.find_copied())) == sorted(jobs)


@pytest.mark.parametrize("act", [ClusterFiles.make_key, lambda files: token(files, "a")])
def test_a_folder_that_cannot_be_made(tmp_path: Path, act: Callable[[ClusterFiles], object]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ClusterError, match=r"cannot (make|read) .*: Not a directory") as caught:
        act(ClusterFiles(tmp_path / "file" / "demo"))
    assert caught.value.hint
