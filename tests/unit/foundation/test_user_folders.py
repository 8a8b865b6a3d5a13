import os
import pwd
from pathlib import Path

import pytest

from foundation.errors import ClusterError
from foundation.user_folders import cache_folder, correct_home, home_folder, state_folder

REAL_HOME = Path(pwd.getpwuid(os.getuid()).pw_dir)


@pytest.mark.parametrize(
    ("home", "given", "expected"),
    [
        ("/h", None, "/h"),
        ("/h", "/x", "/x"),
        ("/h", "", "/h"),
        ("/h", "../x", "/h"),
        ("", None, REAL_HOME),
        ("h", "x", REAL_HOME),
        (None, None, REAL_HOME),
    ],
)
def test_empty_and_relative_values_are_ignored(
    monkeypatch: pytest.MonkeyPatch, home: str | None, given: str | None, expected: str | Path
) -> None:
    for name, value in (("HOME", home), ("XDG_STATE_HOME", given), ("XDG_CACHE_HOME", given)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    of_state, of_cache = ("", "") if expected == "/x" else (".local/state", ".cache")
    assert state_folder() == Path(expected, of_state, "cluster")
    assert cache_folder() == Path(expected, of_cache, "cluster")
    correct_home()  # for libraries and child processes
    assert os.environ["HOME"] == ("/h" if home == "/h" else str(REAL_HOME))


def test_a_user_without_a_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "")
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    with pytest.raises(ClusterError, match="no home folder: HOME is not set") as caught:
        home_folder()
    assert caught.value.hint is not None
    correct_home()
    assert "HOME" not in os.environ
