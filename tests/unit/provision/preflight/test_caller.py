"""The caller's identity, from STS, and address, from a service like checkip.amazonaws.com."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import trustme

from foundation.errors import ClusterError
from provision.preflight import caller
from provision.preflight.caller import describe_caller, find_caller_address
from provision_world import World, make_config
from s3_server import serve_over_tls


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
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
    with checkip(monkeypatch, tmp_path, b"198.51.100.9\n"):
        assert describe_caller(world.clients, make_config(ssh_from="auto")).ssh_from == "198.51.100.9/32"


@pytest.mark.parametrize(
    ("refused", "address"), [("", "198.51.100.9"), ("https://127.0.0.1:9/", "203.0.113.7"), ("dropped", "203.0.113.7")]
)
def test_ssh_comes_from_the_address_without_a_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, refused: str, address: str
) -> None:
    """A proxy's own address counts only where nothing but the proxy leads out."""
    monkeypatch.setenv("NO_PROXY", "")
    asks, is_over = caller._ask, Event()

    def ask(url: str, context: ssl.SSLContext, proxies: dict[str, str] | None, *, timeout_s: float) -> str:
        if proxies is None:
            return "203.0.113.7"
        if refused == "dropped":  # at each of the service's addresses, for timeout_s
            is_over.wait(10)
            return "198.51.100.9"
        return asks(refused or url, context, proxies, timeout_s=timeout_s)

    monkeypatch.setattr(caller, "_ask", ask)
    monkeypatch.setattr(caller, "_DIRECT_TIMEOUT_S", 0.5 if refused == "dropped" else 10)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    with checkip(monkeypatch, tmp_path, b"198.51.100.9"):
        assert str(find_caller_address()) == address
    is_over.set()


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
