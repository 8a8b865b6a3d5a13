"""The user's folders, for any values of HOME and the XDG variables."""

import os
import pwd
from pathlib import Path

import pytest

from foundation.errors import ClusterError
from foundation.user_folders import cache_folder, correct_home, home_folder, state_folder
from s3_server import shared_server

__all__ = ["shared_server"]

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


@pytest.mark.parametrize("home", ["", "h", None])
def test_home_is_corrected_for_libraries_and_child_processes(monkeypatch: pytest.MonkeyPatch, home: str | None) -> None:
    monkeypatch.setenv("HOME", home or "")
    if home is None:
        monkeypatch.delenv("HOME")
    correct_home()
    assert os.environ["HOME"] == str(REAL_HOME)
    monkeypatch.setenv("HOME", "/h")
    correct_home()
    assert os.environ["HOME"] == "/h"


def test_a_user_without_a_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "")
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    with pytest.raises(ClusterError, match="no home folder: HOME is not set") as caught:
        home_folder()
    assert caught.value.hint is not None
    correct_home()
    assert "HOME" not in os.environ
