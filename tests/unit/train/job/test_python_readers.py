"""MXNet's readers that use Python's open(), which cannot read s3://."""

import pytest

from train.job.reading import find_python_reader

READERS = {
    "ImageRecordDataset": "mx.gluon.data.vision.ImageRecordDataset(url + 'one.rec')[0]",
    "RecordFileDataset": "mx.gluon.data.RecordFileDataset(url + 'one.rec')[0]",
    "MXIndexedRecordIO": "mx.recordio.MXIndexedRecordIO(url + 'one.idx', url + 'one.rec', 'r').read_idx(0)",
    "ImageIter": "next(mx.image.ImageIter(1, (3, 4, 4), path_imgrec=url + 'one.rec', path_imgidx=url + 'one.idx'))",
}


@pytest.mark.parametrize(("name", "program"), READERS.items())
def test_readers_are_found_in_a_program(name: str, program: str) -> None:
    assert find_python_reader(f"import mxnet as mx\ndata = {program}\n") == name
