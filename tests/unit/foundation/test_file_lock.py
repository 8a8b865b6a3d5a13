from pathlib import Path

from foundation.file_lock import FileLock, is_held


def test_a_lock_is_one_processes_and_looking_does_not_take_it(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    assert not is_held(path)
    with FileLock(path) as ours, FileLock(path) as theirs:
        assert ours.take_now()
        assert is_held(path)
        assert not theirs.take_now()
        ours.release()
        assert not is_held(path)
        assert theirs.take(timeout_s=0.1)
