"""moto's S3 behind real HTTP, in this process, and a proxy before it that breaks connections."""

import json
import os
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from moto.backends import get_backend
from moto.core import DEFAULT_ACCOUNT_ID
from moto.server import ThreadedMotoServer

REGION = "eu-west-1"


@dataclass(frozen=True, kw_only=True, slots=True)
class S3Server:
    """A server of its own, with a plain client to look at what is in it."""

    url: str
    client: Any

    def put(self, bucket: str, objects: dict[str, bytes]) -> None:
        """Make a bucket with objects, whatever their keys are: HTTP clients would clean up `..` in them."""
        self.client.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": REGION})
        for key, content in objects.items():
            get_backend("s3")[DEFAULT_ACCOUNT_ID]["aws"].put_object(bucket, key, content)

    def read(self, bucket: str) -> dict[str, bytes]:
        """Every object of a bucket."""
        listed = self.client.list_objects_v2(Bucket=bucket).get("Contents", [])
        return {item["Key"]: self.client.get_object(Bucket=bucket, Key=item["Key"])["Body"].read() for item in listed}

    def reset(self) -> None:
        """Forget everything, once what an interrupted client has left behind is answered."""
        for thread in threading.enumerate():
            if "process_request_thread" in thread.name:
                thread.join(timeout=10)
        get_backend("s3")[DEFAULT_ACCOUNT_ID]["aws"].reset()

    @contextmanager
    def caller_who_may(self, *actions: str) -> Iterator[tuple[str, str]]:
        """The access key of a user with these permissions and no others; until the block ends, S3 looks at them."""
        iam = boto3.client("iam", endpoint_url=self.url, region_name=REGION)
        iam.create_user(UserName="user")
        statement = {"Effect": "Allow", "Action": actions, "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        iam.put_user_policy(UserName="user", PolicyName="policy", PolicyDocument=policy)
        key = iam.create_access_key(UserName="user")["AccessKey"]
        unchecked = self._check_after_calls(0)
        try:
            yield key["AccessKeyId"], key["SecretAccessKey"]
        finally:
            self._check_after_calls(unchecked)
            iam.delete_access_key(UserName="user", AccessKeyId=key["AccessKeyId"])
            iam.delete_user_policy(UserName="user", PolicyName="policy")
            iam.delete_user(UserName="user")

    def _check_after_calls(self, count: float) -> float:
        """Let moto check permissions after so many more calls; returns what was set before."""
        request = urllib.request.Request(
            f"{self.url}/moto-api/reset-auth", str(count).encode(), {"Content-Type": "text/plain"}
        )
        with urllib.request.urlopen(request) as response:
            return float(json.load(response)["PREVIOUS_INITIAL_NO_AUTH_ACTION_COUNT"])

    def upload_ids(self, bucket: str) -> list[str]:
        """The multipart uploads that were neither completed nor aborted."""
        return [item["UploadId"] for item in self.client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])]

    def unfinished(self, bucket: str) -> list[str]:
        """The keys of multipart uploads that were neither completed nor aborted."""
        return [item["Key"] for item in self.client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])]


@contextmanager
def serve_s3() -> Iterator[S3Server]:
    """A server until the block ends."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        yield S3Server(url=url, client=boto3.client("s3", endpoint_url=url, region_name=REGION))
    finally:
        server.stop()


@contextmanager
def serve_s3_alone(**env: str) -> Iterator[S3Server]:
    """A server until the block ends, and an environment in which AWS is this server; `env`: more variables."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", **env}.items():
            patch.setenv(name, value)
        with serve_s3() as server:
            patch.setenv("AWS_ENDPOINT_URL", server.url)
            yield server


@dataclass(slots=True)
class Cuts:
    """How many more responses are cut off, and after how many bytes."""

    left: int
    after_bytes: int
    done: int = field(default=0)


@contextmanager
def cutting_proxy(target_url: str, cuts: Cuts) -> Iterator[str]:
    """The URL of a proxy that closes connections in the middle of long responses, `cuts.left` times."""
    target = urlsplit(target_url)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return  # the listener was closed: the test is over
            upstream = socket.create_connection((str(target.hostname), int(target.port or 80)))
            threading.Thread(target=_pump, args=(client, upstream, None), daemon=True).start()
            threading.Thread(target=_pump, args=(upstream, client, cuts), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _pump(source: socket.socket, sink: socket.socket, cuts: Cuts | None) -> None:
    passed = 0
    try:
        while chunk := source.recv(65536):
            passed += len(chunk)
            if cuts and cuts.left and passed > cuts.after_bytes:
                cuts.left -= 1
                cuts.done += 1
                break
            sink.sendall(chunk)
    except OSError:
        pass  # the other side is gone: so is this one
    for end in (source, sink):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it was closed already


@dataclass(slots=True)
class Faults:
    """What a proxy still does to connections: so many of each kind.

    busy: the next connections are answered with 503 SlowDown and closed. sent, received: one bit of what the client
    sends or receives is turned, `at_byte` bytes after the beginning of a connection's stream.
    """

    busy: int = 0
    sent: int = 0
    received: int = 0
    at_byte: int = 100_000
    done: int = 0


@contextmanager
def faulty_proxy(target_url: str, faults: Faults) -> Iterator[str]:
    """The URL of a proxy that does these things."""
    target = urlsplit(target_url)
    listener = socket.create_server(("127.0.0.1", 0))
    lock = threading.Lock()

    def take(kind: str) -> bool:
        with lock:
            left: int = getattr(faults, kind)
            setattr(faults, kind, max(left - 1, 0))
            faults.done += left > 0
            return left > 0

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return  # the listener was closed: the test is over
            if take("busy"):
                threading.Thread(target=_refuse, args=(client,), daemon=True).start()
                continue
            upstream = socket.create_connection((str(target.hostname), int(target.port or 80)))
            for source, sink, kind in ((client, upstream, "sent"), (upstream, client, "received")):
                threading.Thread(
                    target=_pump_bits, args=(source, sink, faults.at_byte, partial(take, kind)), daemon=True
                ).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _refuse(client: socket.socket) -> None:
    body = (
        b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
    )
    head = b"HTTP/1.1 503 Slow Down\r\nConnection: close\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n"
    with client:
        try:
            client.recv(65536)
            client.sendall(head % len(body) + body)
            client.shutdown(socket.SHUT_WR)
            while client.recv(65536):
                pass  # the rest of what it sends: closing before would reset the connection, answer and all
        except OSError:
            pass  # it left


def _pump_bits(source: socket.socket, sink: socket.socket, at_byte: int, take: Callable[[], bool]) -> None:
    passed = 0
    try:
        while chunk := source.recv(65536):
            begin, passed = passed, passed + len(chunk)
            if begin <= at_byte < passed and take():
                turned = bytearray(chunk)
                turned[at_byte - begin] ^= 0x10
                chunk = bytes(turned)
            sink.sendall(chunk)
    except OSError:
        pass  # the other side is gone: so is this one
    for end in (source, sink):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it was closed already
