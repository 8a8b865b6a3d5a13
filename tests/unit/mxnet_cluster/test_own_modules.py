"""The modules that users import work next to users' modules with common names."""

import shutil
import subprocess
import sys
from pathlib import Path

from mxnet_cluster.recordio import ImageRecord, encode_image, encode_record
from project import REPOSITORY

PROGRAM = """
from mxnet_cluster.errors import ClusterError
from mxnet_cluster.records import decode_image, iterate_records
import data, records, train, cluster, sandbox, foundation, bootstrap, provision
assert records.OWN and train.OWN
print(*[decode_image(one, name="a").record_id for one in iterate_records("a.rec")])
try:
    list(iterate_records("none.rec"))
except ClusterError as error:
    print(error)
"""
OWN = ("data", "records", "train", "cluster", "node", "sandbox", "foundation", "bootstrap", "provision")


def test_a_program_may_have_modules_of_the_same_names(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "mxnet_cluster", tmp_path / "site" / "mxnet_cluster")  # as an environment has it
    project = tmp_path / "project"
    project.mkdir()
    for name in OWN:
        (project / f"{name}.py").write_text("OWN = True\n")
    (project / "program.py").write_text(PROGRAM)
    record = ImageRecord(labels=(1.0,), record_id=7, image=b"image")
    (project / "a.rec").write_bytes(encode_record(encode_image(record)))
    done = subprocess.run(
        [sys.executable, "-S", "program.py"], cwd=project, env={"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["7", "none.rec: no such file or folder"], done.stderr
