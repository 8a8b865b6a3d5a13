"""MXNet's readers that use Python's open() cannot read s3://: the real MXNet against moto's S3."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from real_mxnet import real_mxnet
from record_files import image_record, small_jpeg
from s3_server import REGION, S3Server, serve_over_tls, serve_s3_alone
from train.follow.advice import Advisor
from train.follow.events import Event
from train.job.reading import find_python_reader

URL = "s3://bucket/images/"
READERS = {
    "ImageRecordDataset": "mx.gluon.data.vision.ImageRecordDataset(url + 'one.rec')[0]",
    "RecordFileDataset": "mx.gluon.data.RecordFileDataset(url + 'one.rec')[0]",
    "MXIndexedRecordIO": "mx.recordio.MXIndexedRecordIO(url + 'one.idx', url + 'one.rec', 'r').read_idx(0)",
    "ImageIter": "next(mx.image.ImageIter(1, (3, 4, 4), path_imgrec=url + 'one.rec', path_imgidx=url + 'one.idx'))",
    "ImageIter of files": "next(mx.image.ImageIter(1, (3, 4, 4), path_imglist=url + 'one.lst', path_root=url))",
}
PROGRAM = f"""
import sys, traceback
import mxnet as mx
url = {URL!r}
for read in sys.argv[1:]:
    try:
        eval(read)
        print("READ")
    except Exception as error:
        print(traceback.format_exception_only(type(error), error)[-1].strip())
"""


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with serve_s3_alone() as server:
        objects = {"one.rec": image_record(7), "one.idx": b"0\t0\n"}
        objects |= {"one.lst": b"0\t7\tone.jpg\n", "one.jpg": small_jpeg()}
        server.put("bucket", {f"images/{name}": content for name, content in objects.items()})
        yield server


def read(**env: str) -> list[str]:
    words = [real_mxnet(), "-W", "ignore", "-c", PROGRAM, *READERS.values()]
    done = subprocess.run(
        words, env=os.environ | {"S3_REGION": REGION} | env, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.usefixtures("server")
def test_mxnet_alone_fails_and_the_hint_helps(tmp_path: Path) -> None:
    with serve_over_tls(tmp_path) as port:
        lines = read(S3_IS_AWS="0", S3_ENDPOINT=f"127.0.0.1:{port}", S3_VERIFY_SSL="0")
    assert len(lines) == len(READERS)
    for line in lines:
        advice = str(Advisor().take(Event(kind="line", at=1.0, text=line)))
        assert URL in advice
        assert 'set `[data] mode = "stage"`' in advice
        assert "sync" not in advice


@pytest.mark.parametrize(("name", "program"), READERS.items())
def test_readers_are_found_in_a_program(name: str, program: str) -> None:
    assert find_python_reader(f"import mxnet as mx\ndata = {program}\n") == name.partition(" ")[0]
