"""The S3 check of `cluster verify`: the object that it reads, and its explanation of the result."""

import pytest
from msgspec.structs import replace

from bootstrap.apply import ReadyNode
from bootstrap.verify.checks import ProbeResult
from bootstrap.verify.nodes import verify
from foundation.progress import silent
from local_nodes import FakeMXNet, fake_mxnet, local_node, nodes, of_kind
from provision.aws.s3_access import S3Access
from s3_server import serve_s3
from train.job.data_check import check_s3, explain_error, s3_probe
from train.s3.url import parse_url

__all__ = ["fake_mxnet", "nodes"]


def test_without_mxnet_the_object_is_read_as_staging_does(
    nodes: list[ReadyNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    """MXNet cannot be imported here."""
    keys = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
    for key, value in keys.items():
        monkeypatch.setenv(key, value)
    with serve_s3() as server:
        server.reset()
        server.put("bucket", {"a.rec": b"hello"})
        access = S3Access(env={"S3_REGION": "us-east-1", "AWS_ENDPOINT_URL": server.url}, secrets=keys)
        probe = s3_probe(parse_url("s3://bucket/a.rec"), access, is_deep=True)
        checks = verify([replace(nodes[0], framework="none")], probes=[probe], report=silent)
        server.reset()
    (found,) = of_kind(checks, "s3")
    assert (found.status, found.result) == ("ok", "read by staging, 5 bytes")
    assert of_kind(checks, "compute") == []
    (rate,) = of_kind(checks, "measure")
    assert (rate.subject, rate.status, rate.unit) == ("S3 read", "ok", "MB/s")
    assert rate.value


def test_only_mxnet_sees_the_jobs_secrets(nodes: list[ReadyNode], fake_mxnet: FakeMXNet) -> None:
    fake_mxnet(
        "def MXRecordIO(uri, mode):\n"
        "    for name in ('environ', 'cmdline'):\n"
        "        assert b'canary' not in open('/proc/self/' + name, 'rb').read()\n"
        "    assert os.environ['AWS_SECRET_ACCESS_KEY'] == 'canary'\n"
        "    return Anything(read=lambda: b'hello')\n"
        "recordio = Anything(MXRecordIO=MXRecordIO)"
    )
    access = S3Access(env={"S3_REGION": "us-east-1"}, secrets={"AWS_SECRET_ACCESS_KEY": "canary"})
    probe = s3_probe(parse_url("s3://bucket/a.rec"), access)
    (found,) = of_kind(verify(nodes[:1], probes=[probe], report=silent), "s3")
    assert (found.status, found.result) == ("ok", "read by MXNet, a record of 5 bytes")


# Messages of MXNet 1.7.0.post2 when a server refuses requests, shortened.
FRAME = 'Traceback (most recent call last):\n  File "src/io/s3_filesys.cc", line 1096\n'
CURL = "Error: Check failed: curl_easy_perform(curl) == CURLE_OK: "


def refusal(code: str, message: str = "told") -> str:
    return f'{FRAME}MXNetError: <?xml version="1.0"?><Error><Code>{code}</Code><Message>{message}</Message></Error>\n'


@pytest.mark.parametrize(
    ("error", "status", "message", "cause"),
    [
        ("MXNetError: Check failed: header[0] == kMagic: Invalid RecordIO File", "ok", "not a RecordIO", None),
        (refusal("AccessDenied", "not authorized to perform: s3:GetObject"), "failed", "AccessDenied", "s3:GetObject"),
        (refusal("SomethingElse", "in S3's words"), "failed", "SomethingElse", "in S3's words"),
        (f"{FRAME}{CURL}Could not resolve host: h", "failed", "Could not resolve host: h", None),
    ],
)
def test_errors_of_mxnets_reader_are_explained(error: str, status: str, message: str, cause: str | None) -> None:
    meaning = explain_error(error, node="node-1", uri="s3://bucket/a.rec", endpoint="h:1")
    assert meaning.status == status
    assert message in meaning.result
    assert (cause or "") in (meaning.cause or "")
    assert meaning.status == "ok" or meaning.hint


@pytest.mark.parametrize(
    ("stdout", "code", "status", "message"),
    [
        ('{"read": 5}', 0, "ok", "a record of 5 bytes"),
        ('{"credentials": "no role"}', 0, "failed", "no credentials"),
        ('{"staged": 5}', 0, "ok", "for this MXNet wheel, 5 bytes"),
        ('{"refused": "S3: not allowed", "code": "AccessDenied"}', 0, "failed", "AccessDenied"),
        ('{"refused": "timed out", "code": "Broken"}', 0, "failed", "h cannot be reached"),
        ("", 1, "unchecked", "OSError: libcuda.so.1"),
        ("", -11, "failed", "killed by signal 11"),
        ("", None, "failed", "did not end in time"),
    ],
)
def test_results_of_the_s3_probe(stdout: str, code: int | None, status: str, message: str) -> None:
    result = ProbeResult(exit_code=code, stdout=stdout, stderr="OSError: libcuda.so.1" if code == 1 else "")
    (check,) = check_s3(local_node(0, None), result, uri="s3://bkt/a.rec", endpoint="h")
    assert (check.status, check.subject) == (status, "s3://bkt/a.rec")
    assert message in check.result
