"""What is kept on the user's machine: the key, the journal, the lock."""

import os
import re
import resource
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from foundation.errors import ClusterError
from foundation.files import UNFINISHED
from provision.files import TOKEN_LIFETIME_S, ClusterFiles, make_private_key, public_key_of
from provision.membership import KnownInstances
from provision.resources.key_pair import normal_public_key


@pytest.fixture
def files(tmp_path: Path) -> ClusterFiles:
    return ClusterFiles(tmp_path / "state" / "demo")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_nothing_is_made_before_it_is_needed(files: ClusterFiles) -> None:
    assert files.find_public_key() is None
    assert files.launches() == ()
    assert not files.exist
    assert not files.root.parent.exists()


def test_the_key_is_the_owners_alone_and_stays(files: ClusterFiles) -> None:
    public_key = files.make_key()

    assert public_key.startswith("ssh-ed25519 ")
    assert (mode(files.private_key), mode(files.root)) == (0o600, 0o700)
    assert files.make_key() == files.find_public_key() == public_key
    assert [path.name for path in files.root.iterdir()] == ["id_ed25519"]


def test_the_key_is_one_that_openssh_reads(files: ClusterFiles) -> None:
    public_key = files.make_key()

    read = subprocess.run(
        ["ssh-keygen", "-y", "-f", str(files.private_key)], capture_output=True, text=True, check=True
    )
    assert normal_public_key(read.stdout) == public_key


def test_keys_differ_each_time() -> None:
    assert public_key_of(make_private_key()) != public_key_of(make_private_key())


@pytest.mark.parametrize("content", [b"", b"not a key", b"-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n"])
def test_a_file_that_is_no_key_is_not_overwritten(files: ClusterFiles, content: bytes) -> None:
    files.root.mkdir(parents=True)
    files.private_key.write_bytes(content)

    with pytest.raises(ClusterError, match="not an OpenSSH private key"):
        files.make_key()
    assert files.private_key.read_bytes() == content


def test_a_key_with_a_passphrase_is_refused(files: ClusterFiles) -> None:
    files.make_key()
    subprocess.run(
        ["ssh-keygen", "-p", "-q", "-N", "secret", "-f", str(files.private_key)], check=True, capture_output=True
    )

    with pytest.raises(ClusterError, match="without passphrase"):
        files.find_public_key()


def token(files: ClusterFiles, digest: str, now: float = 1000.0) -> str:
    return files.client_token(digest, indices=(0, 1), now=now)


def test_a_token_is_kept_for_its_request_until_it_is_forgotten(files: ClusterFiles) -> None:
    first = token(files, "a")

    assert token(ClusterFiles(files.root), "a") == first  # another process
    assert token(files, "b") != first
    assert [(launch.digest, launch.indices, launch.started_at) for launch in files.launches()] == [
        ("a", (0, 1), 1000.0),
        ("b", (0, 1), 1000.0),
    ]
    files.forget_launch("b")
    assert token(files, "a") == first
    files.forget_launches({})
    assert token(files, "a") != first


def test_what_was_launched_stays_known_when_its_token_is_forgotten(files: ClusterFiles) -> None:
    """Whichever way a launch ends: its answer was seen, it was found by its token, its request was made anew."""
    answered, found, _ = (token(files, digest) for digest in ("answered", "found", "left"))
    files.note_launched("answered", ["i-1"])
    files.note_launched("left", ["i-4"])
    assert files.known_instances().instance_ids == {"i-1", "i-4"}
    assert files.known_instances().tokens == {launch.token for launch in files.launches()}

    files.forget_launches({answered: {"i-1"}, found: {"i-2", "i-3"}}, tokens={answered, found})
    assert [launch.digest for launch in files.launches()] == ["left"]
    assert files.known_instances().instance_ids == {"i-1", "i-2", "i-3", "i-4"}
    token(files, "left", now=1000.0 + TOKEN_LIFETIME_S + 1)
    files.note_instances(["i-5"])

    assert ClusterFiles(files.root).known_instances().instance_ids == {"i-1", "i-2", "i-3", "i-4", "i-5"}


def test_pinned_host_keys_and_the_private_key_are_known(files: ClusterFiles) -> None:
    assert files.known_instances() == KnownInstances()
    public_key = files.make_key()
    files.known_hosts.write_text("i-1 ssh-ed25519 AAAA\n\ni-2 ssh-ed25519 BBBB\n")
    assert files.known_instances() == KnownInstances(instance_ids=frozenset({"i-1", "i-2"}), public_key=public_key)
    files.private_key.write_text("damaged")
    assert files.known_instances().public_key is None


def test_a_token_that_is_too_old_is_not_used_again(files: ClusterFiles) -> None:
    first = token(files, "a")

    assert token(files, "a", now=1000.0 + TOKEN_LIFETIME_S - 1) == first
    assert token(files, "a", now=1000.0 + TOKEN_LIFETIME_S + 1) != first
    assert len(files.launches()) == 1


@pytest.mark.parametrize("content", ["", "{", "[]", '{"launches": [{}]}', '{"launches": [{"digest": 1}]}', "null"])
def test_a_damaged_journal_is_not_passed_over(files: ClusterFiles, content: str) -> None:
    files.root.mkdir(parents=True)
    files.journal.write_text(content)

    with pytest.raises(ClusterError, match="is damaged") as caught:
        token(files, "a")
    assert str(files.journal) in str(caught.value.hint)


def test_a_half_written_file_of_a_crash_is_no_obstacle(files: ClusterFiles) -> None:
    files.root.mkdir(parents=True)
    (files.root / f"{UNFINISHED}abc").write_text("half")

    files.make_key()
    token(files, "a")
    files.forget()
    assert not files.root.exists()


@pytest.mark.parametrize("damaged", [b"", b"[]", b"{", b"\xff"])
def test_addresses_are_a_hint_and_no_more(files: ClusterFiles, damaged: bytes) -> None:
    assert files.addresses() == {}
    files.keep_addresses({"i-1": "198.18.0.2"})
    assert files.addresses() == {"i-1": "198.18.0.2"}
    files.addresses_file.write_bytes(damaged)
    assert files.addresses() == {}
    files.forget()
    assert not files.root.exists()


def test_forget_leaves_what_is_not_ours(files: ClusterFiles) -> None:
    files.make_key()
    files.known_hosts.write_text("")
    (files.root / "notes").write_text("mine")

    files.forget()

    assert [path.name for path in files.root.iterdir()] == ["notes"]
    files.forget()


HOLD_LOCK = """
import sys, time
from pathlib import Path
from provision.files import ClusterFiles
with ClusterFiles(Path(sys.argv[1])).locked():
    print("locked", flush=True)
    time.sleep(60)
"""


def test_the_lock_names_its_holder_and_ends_with_it(files: ClusterFiles) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD_LOCK, str(files.root)], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"locked\n"
            with pytest.raises(ClusterError, match=f"process {holder.pid}"), files.locked():
                pass
        finally:
            holder.kill()
    with files.locked():
        assert files.exist


@contextmanager
def no_space() -> Iterator[None]:
    """No file of this process can grow: what a full disk is to it. Not longer than needed: pytest's own log is one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_not_in_the_way_of_the_lock(files: ClusterFiles) -> None:
    said = ""
    with no_space(), files.locked():
        try:
            files.make_key()
        except ClusterError as error:
            said = error.message
    assert re.search(r"cannot write .*id_ed25519: File too large", said)


def lock(files: ClusterFiles) -> None:
    with files.locked():
        pass


@pytest.mark.parametrize("act", [ClusterFiles.make_key, lambda files: token(files, "a"), lock])
def test_a_folder_that_cannot_be_made_is_said_plainly(tmp_path: Path, act: Callable[[ClusterFiles], object]) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(ClusterError, match=r"cannot (make|read) .*: Not a directory") as caught:
        act(ClusterFiles(tmp_path / "file" / "demo"))
    assert caught.value.hint


def test_what_cannot_be_removed_is_named(files: ClusterFiles) -> None:
    files.root.mkdir(parents=True)
    files.journal.mkdir()
    with pytest.raises(ClusterError, match=r"cannot remove .*journal.json: Is a directory"):
        files.forget()


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_write_that_breaks_off_leaves_what_was_there(
    files: ClusterFiles, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    first = token(files, "a")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        if failing == "fsync":
            patch.setattr(os, "fsync", full)
        else:
            patch.setattr(Path, "replace", full)
        with pytest.raises(ClusterError, match="No space left on device"):
            token(files, "b")
    assert token(files, "a") == first
    assert [launch.digest for launch in files.launches()] == ["a"]
