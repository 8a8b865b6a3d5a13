"""The PyTorch script: its options and data without PyTorch, and trainings with the real one where there is a wheel."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from project import REPOSITORY
from real_torch import real_torch
from s3_server import S3Server
from train.follow.progress import parse_report
from training_scripts import SCRIPTS, opened, script_modules, write_digits

SCRIPT = SCRIPTS / "train_mnist_torch.py"
OPTIONS = (
    "network", "data-dir", "data-train", "data-val", "batch-size", "num-epochs", "mom", "wd", "seed", "lr", "lr-factor",
    "lr-step-epochs", "warmup-epochs", "warmup-strategy", "disp-batches", "model-prefix", "save-period",
    "keep-checkpoints", "resume", "load-epoch", "checkpoint-batches", "dist-backend", "dist-timeout",
)  # fmt: skip
RANK = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
PATTERN = re.compile("RANK|WORLD_SIZE|LOCAL_|MASTER_|CLUSTER_|TORCHELASTIC|GLOO_|NCCL_")


@pytest.fixture(scope="module")
def options() -> Iterator[ModuleType]:
    with script_modules("ddp.options") as (module,):
        yield module


@pytest.fixture(scope="session")
def torch_python() -> str:
    return real_torch()


def own_environment(**more: str) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if PATTERN.match(key) is None}
    return {**clean, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY), **more}


def run_script(python: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, SCRIPT, *words], env=own_environment(**environment), capture_output=True, text=True, check=False
    )


def run_ranks(
    python: str, count: int, *words: str, script: Path = SCRIPT, **environment: str
) -> list[tuple[int, str, str]]:
    """Runs the script on all ranks; returns the exit code, output and errors of each."""
    where = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_port()), **environment}
    running = [
        subprocess.Popen(
            [python, script, *words], env=own_environment(**where, RANK=str(rank), LOCAL_RANK=str(rank)),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(count)
    ]  # fmt: skip
    outputs = [process.communicate() for process in running]
    return [(process.returncode, *output) for process, output in zip(running, outputs, strict=True)]


def find_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port: int = trial.getsockname()[1]
        return port


# -- without PyTorch ---------------------------------------------------------------------------------------------------


def test_help_needs_no_torch() -> None:
    done = run_script(sys.executable, "--help")
    assert done.returncode == 0
    assert [option for option in OPTIONS if f"--{option} " not in done.stdout.replace("\n", " \n")] == []


def parse(options: ModuleType, *words: str, **environment: str) -> Any:
    with script_modules("common.options") as (common,):
        defaults = common.Defaults("mlp", 32, 20, 0.05, 0.0, 10)
    return options.parse("a test", ("mlp", "lenet"), defaults, words, environment)


@pytest.mark.parametrize(
    ("words", "environment", "said"),
    [
        ((), {}, "no data: add --data-dir"),
        (("--data-dir", "d", "--data-train", "a.rec"), {}, "--data-dir excludes"),
        (("--data-train", "s3://b/train"), {}, "ends neither with .rec nor"),
        (("--data-dir", "d", "--resume"), {}, "--resume needs --model-prefix"),
        (("--data-dir", "d", "--load-epoch", "20", "--model-prefix", "m"), {}, "nothing to do"),
        (("--data-dir", "d", "--model-prefix", "s3://b"), {}, "a bucket and a prefix are needed"),
        (("--data-dir", "d", "--dist-backend", "mpi"), {}, "invalid choice: 'mpi'"),
        (("--data-dir", "d", "--kv-store", "dist_sync"), {}, "unrecognized arguments"),
        (("--data-dir", "d"), {"RANK": "0"}, "WORLD_SIZE, MASTER_ADDR, MASTER_PORT missing from the environment"),
        (("--data-dir", "d"), RANK | {"RANK": "2"}, "RANK=2, WORLD_SIZE=2, MASTER_PORT=29500: not a rank below"),
        (("--data-dir", "d"), RANK | {"MASTER_PORT": "x"}, "MASTER_PORT=x"),
    ],
)
def test_invalid_options(
    options: ModuleType, words: tuple[str, ...], environment: dict[str, str], said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    with pytest.raises(SystemExit, match="2"):
        parse(options, *words, **environment)
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_defaults_come_from_the_environment(options: ModuleType) -> None:
    chosen = parse(options, "--model-prefix", "auto", CLUSTER_DATA_URL="s3://b/d/", CLUSTER_OUTPUT_URL="s3://b/o/")
    assert (chosen.data_dir, chosen.model_prefix, chosen.lr_step_epochs) == ("s3://b/d/", "s3://b/o/model", [10, 15])
    assert parse(options, "--data-train", "a.rec", CLUSTER_DATA_URL="s3://b/d/").data_dir is None
    assert parse(options, "--data-dir", "d", **RANK).data_dir == "d"


def test_cluster_train_understands_the_reports(caplog: pytest.LogCaptureFixture) -> None:
    with script_modules("common.reports") as (reports,), caplog.at_level("INFO"):
        speedometer = reports.Speedometer(32, 20)
        assert [batch for batch in range(1, 50) if speedometer.is_due(batch)] == [20, 40]
        speedometer.report(3, 20, {"accuracy": 0.5, "loss": 1.25})
        reports.report_epoch(3, "Train", {"accuracy": 0.5}, 1.5)
        reports.report_epoch(3, "Validation", {"accuracy": 0.75})
    found = [parse_report(message) for message in caplog.messages]
    running, train, cost, val = found
    assert running is not None
    assert running.samples_per_s is not None
    assert (running.epoch, running.batch, running.metrics) == (3, 20, {"accuracy": 0.5, "loss": 1.25})
    assert [report and (report.epoch, report.metrics) for report in (train, val)] == [
        (3, {"accuracy": 0.5}), (3, {"validation-accuracy": 0.75})
    ]  # fmt: skip
    assert cost is not None
    assert cost.epoch_s == 1.5


def test_a_checkpoint_of_pytorch_names_no_symbol(checkpoints: ModuleType, tmp_path: Path) -> None:
    place = opened(checkpoints, str(tmp_path / "net"))
    writers = {kind: lambda path: Path(path).write_text("x") for kind in ("params", "states")}
    checkpoints.save(place, 1, writers, has_symbol=False, facts={"torch": "2"})
    found = checkpoints.find_newest(place)
    assert (found.epoch, "symbol" in found.manifest) == (1, False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net-0001.json", "net-0001.params", "net-0001.states"]


@pytest.fixture
def staging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.setenv("CLUSTER_DATA_CACHE_DIR", str(tmp_path / "cache"))
    with script_modules("common.staging") as (module,):
        yield module


def test_objects_are_staged(staging: ModuleType, server: S3Server) -> None:
    server.put("data", {"d/a.rec": b"aaaa", "d/b.rec": b"bbbb", "d/index/a.idx": b"0", "e.rec": b"eeee"})
    assert Path(staging.find_file("s3://data/e.rec")).read_bytes() == b"eeee"
    assert [Path(path).read_bytes() for path in staging.find_files("s3://data/d/;s3://data/e.rec")] == [
        b"aaaa", b"bbbb", b"eeee"
    ]  # fmt: skip
    with pytest.raises(staging.ScriptError, match=r"s3://data/f\.rec: there is no such object"):
        staging.find_file("s3://data/f.rec")
    with pytest.raises(staging.ScriptError, match="s3://data/f/: there is nothing to read"):
        staging.find_files("s3://data/f/")


def test_local_files_are_read_in_place(staging: ModuleType) -> None:
    assert staging.find_files("a.rec;b.rec") == ["a.rec", "b.rec"]
    assert staging.find_files("/data/train/") == ["/data/train/"]


# -- with PyTorch ------------------------------------------------------------------------------------------------------


def find_numbers(pattern: str, output: str) -> list[float]:
    return [float(number) for number in re.findall(pattern, output)]


def test_two_ranks_train_from_s3(torch_python: str, server: S3Server, tmp_path: Path) -> None:
    digits = write_digits(tmp_path / "digits", train=320, t10k=51)
    server.put("digits", {path.name: path.read_bytes() for path in digits.iterdir()})
    words = ("--model-prefix", "s3://models/ddp/net", "--resume", "--disp-batches", "2", "--num-epochs", "2")
    environment = {"CLUSTER_DATA_URL": "s3://digits/", "CLUSTER_DATA_CACHE_DIR": str(tmp_path / "cache")}
    ranks = run_ranks(torch_python, 2, *words, **environment)
    assert [code for code, _, _ in ranks] == [0, 0], ranks
    for rank, (_, output, _) in enumerate(ranks):
        assert f"Node[{rank}] Rank {rank} of 2 on cpu, 5 batches of 32 per epoch" in output
        assert "No complete checkpoint s3://models/ddp/net-*" in output
        assert re.findall(r"Epoch\[(\d)\] Batch \[(\d)\]", output) == [("0", "2"), ("0", "4"), ("1", "2"), ("1", "4")]
    both = [find_numbers(r"Validation-accuracy=([\d.]+)", output) for _, output, _ in ranks]
    assert both[0] == both[1]  # the ranks have the same weights, and both count all images
    assert both[0][-1] > 0.9
    assert [output.count("Saved checkpoint") for _, output, _ in ranks] == [2, 0]
    names = [name for name in server.read("models") if name.startswith("ddp/")]
    assert names == [f"ddp/net-{epoch:04}.{kind}" for epoch in (1, 2) for kind in ("json", "params", "states")]


@pytest.mark.slow
def test_a_resumed_training_continues_exactly(torch_python: str, tmp_path: Path) -> None:
    digits = write_digits(tmp_path / "digits", train=320, t10k=10)

    def train(prefix: str, epochs: int) -> list[str]:
        words = ("--data-dir", str(digits), "--model-prefix", str(tmp_path / prefix), "--resume")
        ranks = run_ranks(torch_python, 2, *words, "--num-epochs", str(epochs), "--lr-step-epochs", "1")
        assert [code for code, _, _ in ranks] == [0, 0], ranks
        return [output for _, output, _ in ranks]

    train("a", 1)
    resumed, whole = train("a", 3), train("b", 3)
    for output in resumed:
        assert f"Loaded {tmp_path}/a-0001.params" in output
        assert set(re.findall(r"Epoch\[(\d)\]", output)) == {"1", "2"}
    losses = [find_numbers(r"\[2\] Train-loss=([\d.]+)", "".join(outputs)) for outputs in (resumed, whole)]
    assert len(losses[0]) == 2
    assert losses[0] == losses[1]


def test_a_rank_that_does_not_join_is_named(torch_python: str, tmp_path: Path) -> None:
    where = {**RANK, "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_port())}
    done = run_script(torch_python, "--data-dir", str(tmp_path), "--dist-timeout", "1", **where)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "train_mnist_torch.py: error: the process group did not form: rank 1 of 2 did not join at "
        f"MASTER_ADDR=127.0.0.1 MASTER_PORT={where['MASTER_PORT']} within 1 s"
    )


@pytest.mark.slow
def test_torchrun(torch_python: str, tmp_path: Path) -> None:
    digits = write_digits(tmp_path / "digits", train=320, t10k=51)
    words = ("--nproc-per-node", "2", "--master-port", str(find_port()), SCRIPT, "--data-dir", digits)
    done = subprocess.run(
        [Path(torch_python).parent / "torchrun", *words, "--num-epochs", "1", "--network", "lenet"],
        env=own_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(set(find_numbers(r"Validation-accuracy=([\d.]+)", done.stdout))) == 1


@pytest.mark.slow
def test_the_script_of_a_template_trains_and_resumes(torch_python: str, tmp_path: Path) -> None:
    script = REPOSITORY / "cluster" / "templates" / "train.py"
    for epochs, shown in ((2, ["0", "1"]), (3, ["2"])):
        words = ("--checkpoint", str(tmp_path / "checkpoint.pt"), "--resume", "--epochs", str(epochs))
        for code, output, errors in run_ranks(torch_python, 2, *words, script=script):
            assert code == 0, errors
            reports = [report for report in map(parse_report, output.splitlines()) if report and report.samples_per_s]
            assert [str(report.epoch) for report in reports] == shown
            assert all("loss" in report.metrics for report in reports)


GPUS = """
from ddp.ranks import find_gpu
one = {"CUDA_VISIBLE_DEVICES": "3"}
print([find_gpu({"LOCAL_RANK": "1"}, 4), find_gpu({}, 1), find_gpu({"LOCAL_RANK": "1", **one}, 1),
       find_gpu({"LOCAL_RANK": "1"}, 1), find_gpu({}, 0), find_gpu(one, 0)])
"""


def test_a_rank_uses_its_own_gpu(torch_python: str) -> None:
    done = subprocess.run(
        [torch_python, "-c", GPUS], env=own_environment(PYTHONPATH=str(SCRIPTS)),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "[1, 0, 0, None, None, None]"
