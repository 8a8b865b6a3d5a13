"""The caller's identity, from STS, and address, from a service like checkip.amazonaws.com."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from foundation.errors import ClusterError
from provision.preflight import caller
from provision.preflight.caller import describe_caller, find_caller_address
from provision_world import World, make_config
from s3_server import serve_over_tls


@pytest.fixture(autouse=True)
def authority(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "ca.pem"))


@contextmanager
def checkip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: bytes) -> Iterator[None]:
    """Serves like checkip.amazonaws.com."""

    def application(_environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [answer]

    with serve_over_tls(tmp_path, application) as port:
        monkeypatch.setenv("CLUSTER_CHECKIP_URL", f"https://127.0.0.1:{port}/")
        yield


def test_auto_opens_ssh_to_the_callers_address_alone(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ssh uses no proxy."""
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "localhost")
    with checkip(monkeypatch, tmp_path, b"198.51.100.9\n"):
        address = find_caller_address()
    monkeypatch.setattr(caller, "find_caller_address", lambda: address)
    assert describe_caller(world.clients, make_config(ssh_from="auto")).ssh_from == "198.51.100.9/32"


@pytest.mark.parametrize(
    ("answer", "trusted", "words"),
    [(b"<html>log in</html>", True, "which is not an IPv4 address"), (b"203.0.113.7", False, "verify failed")],
)
def test_answers_that_are_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, answer: bytes, trusted: bool, words: str
) -> None:
    with checkip(monkeypatch, tmp_path, answer):
        if not trusted:
            trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
        with pytest.raises(ClusterError, match=words):
            find_caller_address()


@pytest.mark.parametrize(
    ("url", "words"),
    [("http://127.0.0.1:9/", "must be https://"), ("https://127.0.0.1:9/", "cannot find the address .* refused")],
)
def test_no_answer(url: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("CLUSTER_CHECKIP_URL", url)
    with pytest.raises(ClusterError, match=words) as caught:
        find_caller_address()
    assert "ssh_from" in str(caught.value.hint)
