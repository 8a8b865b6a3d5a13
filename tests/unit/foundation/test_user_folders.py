from pathlib import Path

import pytest

from foundation.errors import ClusterError
from foundation.user_folders import cache_folder, home_folder, state_folder


@pytest.mark.parametrize(("given", "expected"), [(None, "/h"), ("/x", "/x"), ("", "/h"), ("../x", "/h")])
def test_empty_and_relative_values_are_ignored(
    monkeypatch: pytest.MonkeyPatch, given: str | None, expected: str
) -> None:
    for name, value in (("HOME", "/h"), ("XDG_STATE_HOME", given), ("XDG_CACHE_HOME", given)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    of_state, of_cache = ("", "") if expected == "/x" else (".local/state", ".cache")
    assert state_folder() == Path(expected, of_state, "cluster")
    assert cache_folder() == Path(expected, of_cache, "cluster")


def test_a_user_without_a_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 7)
    with pytest.raises(ClusterError, match="no home folder: HOME is not set") as caught:
        home_folder()
    assert caught.value.hint is not None
