"""The user's folders, for any values of HOME and the XDG variables."""

import os
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest

from foundation.errors import ClusterError
from foundation.user_folders import cache_folder, correct_home, home_folder, make_home, state_folder
from s3_server import shared_server

__all__ = ["shared_server"]

REAL_HOME = Path(pwd.getpwuid(os.getuid()).pw_dir)


@pytest.mark.parametrize(
    ("home", "given", "expected"),
    [
        ("/h", None, "/h/{}"),
        ("/h", "/x", "/x"),
        ("/h", "", "/h/{}"),
        ("/h", "x", "/h/{}"),
        ("/h", "../x", "/h/{}"),
        ("/h", "~/x", "/h/{}"),
        ("", None, f"{REAL_HOME}/{{}}"),
        ("h", "x", f"{REAL_HOME}/{{}}"),
        (None, None, f"{REAL_HOME}/{{}}"),
        ("", "/x", "/x"),
    ],
)
@pytest.mark.parametrize(
    ("variable", "find", "below"),
    [
        ("XDG_STATE_HOME", state_folder, ".local/state"),
        ("XDG_CACHE_HOME", cache_folder, ".cache"),
    ],
    ids=["state", "cache"],
)
def test_empty_and_relative_values_are_ignored(
    monkeypatch: pytest.MonkeyPatch,
    *,
    home: str | None,
    given: str | None,
    expected: str,
    variable: str,
    find: Callable[[], Path],
    below: str,
) -> None:
    for name, value in (("HOME", home), (variable, given)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert find() == Path(expected.format(below)) / "cluster"


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


def test_a_home_folder_that_does_not_exist_is_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "a" / "home"))
    assert make_home() == tmp_path / "a" / "home"
    assert (tmp_path / "a" / "home").stat().st_mode & 0o777 == 0o700
    assert make_home() is None
