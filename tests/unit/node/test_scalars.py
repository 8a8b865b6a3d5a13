"""The numbers in a job's log: their steps, and TensorBoard's files of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from node.job.event_files import EventFiles
from node.job.scalars import ScalarReader, Steps
from node.reports import parse_report

# Written by the package tensorboard 2.21, whose own reader checks them: (its version, two scalars of step 300).
BEGIN = bytes.fromhex("1800000000000000a37f4b2209000060a62b4ada411a0d627261696e2e4576656e743a3281f55150")
SCALARS = bytes.fromhex(
    "3c00000000000000c8b7a35209000060a62b4ada4110ac022a2e0a100a0973616d706c65732f731500c03c450a"
    "1a0a1376616c69646174696f6e2d6163637572616379150000003f374a3ea4"
)


@pytest.mark.parametrize(
    ("lines", "steps"),
    [
        (["Epoch[0] Batch [40] a=1", "Epoch[0] Validation-a=1", "Epoch[1] Batch [20] a=1"], [40, 40, 61]),
        (["Epoch[0] Batch [40] a=1", "Epoch[1] Batch [40] a=1", "Epoch[0] Batch [20] a=1"], [40, 81, 20]),  # resumed
        ([f"epoch {n} step {at} loss 1" for n in (0, 1) for at in (0, 5, 10, 15)], [*range(0, 40, 5)]),
        ([f"Epoch [{n}/9], Step [{at}/200], Loss: 1" for n in (1, 2) for at in (100, 200)], [100, 200, 300, 400]),
        (["epoch: 0 step 90 loss: 1", "epoch: 1 step 180 loss: 1"], [90, 180]),  # its steps go on
        (["Train Epoch: 1 [640/60000 (1%)]\tLoss: 1.2", "Train Epoch: 2 [0/60000 (0%)]\tLoss: 1.1"], [640, 641]),
        (
            ["Epoch 1/2", " 9/9 ━━ 3s 1ms/step - loss: 1", "Epoch 2/2", " 9/9 ━━ 3s 1ms/step - loss: 1"],
            [1, 9, 9, 18],
        ),  # Keras
        (["Epoch[3] Train-accuracy=0.9", "Epoch[4] Train-accuracy=0.9"], [3, 4]),
    ],
)
def test_steps_go_on_over_epochs(lines: list[str], steps: list[int]) -> None:
    counted = Steps()
    reports = [report for line in lines if (report := parse_report(line)) is not None]
    assert [counted.find(report) for report in reports] == steps


def log(*lines: dict[str, Any]) -> list[bytes]:
    return [json.dumps({"t": 1764273817.5, **line}).encode() + b"\n" for line in lines]


def test_bars_without_numbers_do_not_count() -> None:
    bars = ("Epoch {}: 100%|##| 9/9 [00:01<00:00, 9it/s, loss=0.5]", "100%|##| 2/2 [00:01<00:00, 9it/s]")
    lines = [{"p": 2, "line": bar.format(epoch)} for epoch in (1, 2) for bar in bars]
    assert [row.step for row in ScalarReader().read(log(*WORKER, *lines))] == [9, 18]


WORKER = ({"p": 2, "role": "worker", "host": "node-1"}, {"p": 2, "rank": 1})
REPORT = {"p": 2, "line": "Epoch[0] Batch [300] Speed: 3020 samples/sec validation-accuracy=0.5 loss=nan"}


def test_event_files_are_those_of_tensorboard(tmp_path: Path) -> None:
    log_file = tmp_path / "events"
    whole = b"".join(log(*WORKER, REPORT))
    log_file.write_bytes(whole[:-5])  # its last line is still being written
    files = EventFiles(str(tmp_path))
    files.update()
    assert files.names == {}
    log_file.write_bytes(whole)
    files.update()
    files.update()
    assert files.names == {1: "tensorboard/worker-1/events.out.tfevents.1764273817.cluster"}
    assert (tmp_path / files.names[1]).read_bytes() == BEGIN + SCALARS
    other = EventFiles(str(tmp_path))  # such as of the command that completes the record of a killed supervisor
    other.update()
    assert (tmp_path / other.names[1]).read_bytes() == BEGIN + SCALARS
