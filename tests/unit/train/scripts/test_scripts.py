"""The training scripts without MXNet; tests/sandbox runs them with MXNet on nodes."""

import ast
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from project import REPOSITORY
from real_torch import real_torch
from training_scripts import SCRIPTS, find_port

SHIPPED = sorted(path.name for path in SCRIPTS.glob("train_*.py") if "torch" not in path.name)
FIELD = (
    "network", "num-layers", "gpus", "kv-store", "num-epochs", "num-examples", "lr", "lr-factor", "lr-step-epochs",
    "initializer", "optimizer", "mom", "wd", "batch-size", "disp-batches", "model-prefix", "save-period", "monitor",
    "load-epoch", "top-k", "loss", "test-io", "dtype", "gc-type", "gc-threshold", "macrobatch-size", "warmup-epochs",
    "warmup-strategy", "data-nthreads", "data-train", "data-train-idx", "data-val", "data-val-idx", "benchmark",
    "num-classes", "resume", "keep-checkpoints", "checkpoint-batches", "seed",
)  # fmt: skip
FIELD_OF_IMAGES = (
    "image-shape", "rgb-mean", "rgb-std", "pad-size", "fill-value", "random-crop", "random-mirror", "max-random-h",
    "max-random-s", "max-random-l", "max-random-aspect-ratio", "min-random-aspect-ratio", "max-random-rotate-angle",
    "max-random-shear-ratio", "max-random-scale", "min-random-scale", "max-random-area", "min-random-area",
    "brightness", "contrast", "saturation", "pca-noise", "random-resized-crop",
)  # fmt: skip
FIELD_OF_TORCH = (
    "network", "data-dir", "batch-size", "num-epochs", "mom", "wd", "seed", "lr", "lr-factor",
    "lr-step-epochs", "warmup-epochs", "warmup-strategy", "disp-batches", "model-prefix", "save-period",
    "keep-checkpoints", "resume", "load-epoch", "checkpoint-batches", "dist-backend", "dist-timeout",
)  # fmt: skip
OTHERS = ("DMLC_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "CLUSTER_", "TORCHELASTIC", "GLOO_", "NCCL_")
LAUNCHED = {
    "DMLC_ROLE": "worker",
    "DMLC_PS_ROOT_URI": "10.0.0.1",
    "DMLC_PS_ROOT_PORT": "9091",
    "DMLC_NUM_WORKER": "2",
    "DMLC_NUM_SERVER": "2",
}


def run_script(
    *words: str, script: str = "train_mnist.py", python: str = sys.executable, **environment: str
) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith(OTHERS)}
    return subprocess.run(
        [python, SCRIPTS / script, *words], env=env | environment, check=False, capture_output=True, text=True
    )


@pytest.mark.parametrize("path", sorted(SCRIPTS.rglob("*.py")), ids=lambda path: path.name)
def test_scripts_are_python_3_6(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 6))


@pytest.mark.parametrize("script", SHIPPED)
def test_help_needs_no_mxnet(script: str) -> None:
    done = run_script("--help", script=script)
    assert done.returncode == 0
    known = FIELD + (FIELD_OF_IMAGES if script != "train_mnist.py" else ())
    assert [option for option in known if f"--{option} " not in done.stdout.replace("\n", " \n")] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "no data: set [data] url"),
        (("--data-dir", "d", "--data-train", "a.rec"), "--data-dir excludes --data-train"),
        (("--data-train", "s3://b/train"), "end with .rec or, as a folder does, with a slash"),
        (("--data-dir", "d", "--lr-step-epochs", "3,x"), "invalid numbers value: '3,x'"),
        (("--data-dir", "d", "--resume"), "need --model-prefix"),
        (("--data-dir", "d", "--model-prefix", "gs://b/m"), "is not the beginning of names"),
        (("--data-dir", "d", "--model-prefix", "models/"), "as in s3://bucket/model or models/model"),
        (("--data-dir", "d", "--benchmark", "1"), "leave out the options of the data"),
        (("--data-dir", "d", "--dtype", "float16"), "--dtype float16 needs --gpus"),
        (("--data-dir", "d", "--kv-store", "dist_sync"), "needs what launch.py sets, such as DMLC_ROLE"),
        (("--data-dir", "d", "--gc-type", "2bit"), "needs --kv-store dist_*"),
        (("--data-dir", "d", "--batch", "2"), "unrecognized arguments: --batch 2"),
    ],
)
def test_invalid_options(
    options: ModuleType, words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(options, *words)
    *usage, last = capsys.readouterr().err.splitlines()
    assert message in last
    assert len(usage) == 1


def parse(options: ModuleType, *words: str, **environment: str) -> Any:
    parser = options.make_parser("a test", ("mlp", "lenet"), without=(options.IMAGES, options.DISTORTION))
    return options.parse(parser, words, environment)


def test_defaults(options: ModuleType) -> None:
    chosen = parse(options, "--data-dir", "d")
    assert (chosen.kv_store, chosen.lr_step_epochs, chosen.gpus) == ("local", [10, 15], [])
    assert parse(options, "--data-dir", "d", **LAUNCHED).kv_store == "dist_sync"
    assert parse(options, "--data-dir", "d", "--num-epochs", "1").lr_step_epochs == []
    assert parse(options, "--data-dir", "d", "--num-epochs", "2").lr_step_epochs == [1]
    assert parse(options, "--data-dir", "d", "--lr-step-epochs", "").lr_step_epochs == []
    assert parse(options, "--data-dir", "d", "--gpus", "0, 2,").gpus == [0, 2]


def test_data_of_the_environment(options: ModuleType) -> None:
    where = {"CLUSTER_DATA_URL": "s3://b/digits/"}
    assert parse(options, **where).data_dir == "s3://b/digits/"
    assert parse(options, "--data-dir", "d", **where).data_dir == "d"
    chosen = parse(options, "--data-train", "a.rec;b.rec", **where)
    assert (chosen.data_dir, chosen.data_train) == (None, "a.rec;b.rec")


def parse_images(options: ModuleType, *words: str, **environment: str) -> Any:
    parser = options.make_parser(
        "a test", ("resnet", "vgg", "mlp"), network="resnet", num_epochs=300, lr_step_epochs=(200, 250),
        num_examples=50000, image_shape=(3, 28, 28), pad_size=4, rgb_mean=(1.0, 2.0, 3.0), rgb_std=(1.0, 1.0, 1.0),
        random_mirror=True,
    )  # fmt: skip
    return options.parse(parser, words, environment)


def test_images_of_the_environment(options: ModuleType) -> None:
    where = {"CLUSTER_DATA_URL": "s3://b/cifar"}
    chosen = parse_images(options, **where)
    assert (chosen.data_train, chosen.data_val) == ("s3://b/cifar/train/", "s3://b/cifar/val/")
    assert parse_images(options, "--data-val", "", **where).data_val == ""
    chosen = parse_images(options, "--data-train", "a.rec", **where)
    assert (chosen.data_train, chosen.data_val) == ("a.rec", None)
    chosen = parse_images(options, "--benchmark", "1", **where)
    assert (chosen.data_train, chosen.data_val, chosen.num_epochs, chosen.num_examples) == (None, None, 1, 0)


def test_defaults_of_images(options: ModuleType) -> None:
    chosen = parse_images(options, "--data-train", "a.rec")
    assert (chosen.num_epochs, chosen.lr_step_epochs, chosen.num_examples) == (300, (200, 250), 50000)
    assert parse_images(options, "--data-train", "a.rec", "--num-examples", "0").num_examples == 0
    assert options.distortions(chosen) == {"rand_mirror": True}
    settings = options.reader_settings(chosen)
    assert settings["data_shape"] == (3, 28, 28)
    assert (settings["mean_g"], settings["std_b"], settings["pad"], settings["fill_value"]) == (2.0, 1.0, 4, 127)
    words = ("--random-mirror", "0", "--random-crop", "--max-random-h", "36", "--min-random-aspect-ratio", "0.75")
    chosen = parse_images(options, "--data-train", "a.rec", *words)
    found = options.distortions(chosen)
    assert found == {"rand_crop": True, "random_h": 36, "min_aspect_ratio": 0.75}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--num-layers", "51"), "--num-layers 51: --network resnet for images of 28 pixels has 8, 14, 20, 26"),
        (("--rgb-mean", "1,2"), "invalid colours value: '1,2'"),
    ],
)
def test_invalid_options_of_images(
    options: ModuleType, words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_images(options, "--data-train", "a.rec", *words)
    assert message in capsys.readouterr().err


def test_the_automatic_prefix_is_in_the_jobs_output(options: ModuleType) -> None:
    auto = ("--data-dir", "d", "--model-prefix", "auto")
    folder = {"CLUSTER_OUTPUT_DIR": "/home/x/output"}
    assert parse(options, *auto, **folder).model_prefix == "/home/x/output/model"
    volume = {"CLUSTER_OUTPUT_URL": "/shared/results/job-1/"}
    assert parse(options, *auto, **folder, **volume).model_prefix == "/shared/results/job-1/model"


def test_later_attempts_of_a_job_resume_from_its_own_checkpoints(options: ModuleType) -> None:
    words = ("--data-dir", "d", "--model-prefix", "s3://b/m")
    later = {"CLUSTER_RESUME": "1", "CLUSTER_ATTEMPT": "2", "CLUSTER_JOB_ID": "job-1"}
    chosen = parse(options, *words, **later)
    assert (chosen.resume, chosen.only_job) == (True, "job-1")
    chosen = parse(options, *words, "--resume", **later)
    assert (chosen.resume, chosen.only_job) == (True, None)
    assert not parse(options, "--data-dir", "d", **later).resume
    assert not parse(options, *words, CLUSTER_ATTEMPT="1", CLUSTER_JOB_ID="job-1").resume


def test_no_role_trains_on_its_own_in_a_cluster() -> None:
    done = run_script("--data-dir", "d", "--kv-store", "local", **LAUNCHED | {"DMLC_ROLE": "server"})
    assert done.returncode == 2
    assert "every worker would train on its own" in done.stderr


def test_without_mxnet_the_script_fails_with_a_message() -> None:
    done = run_script("--data-dir", "d", PYTHONPATH="")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "train_mnist.py: error: ModuleNotFoundError: No module named 'mxnet'"


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            'Traceback (most\n  [bt] (5) f()\nS3: Check failed: allow_null: :Open "/nope": No such',
            'S3: Open "/nope": No such',
        ),
        ('Traceback (most\n  File "x.cc", line 1\nMXNetError: Compile with CUDA', "Compile with CUDA"),
        ("[10:00:00] x.cc:9: it broke\nStack trace:\n  [bt] (0) libmxnet.so", "[10:00:00] x.cc:9: it broke"),
    ],
)
def test_plain_words(script: ModuleType, message: str, words: str) -> None:
    assert script.plain_words(message) == words


def test_a_failed_worker_ends_at_once(tmp_path: Path) -> None:
    """The kv-store's clean-up, an atexit or __del__, would wait for the other workers."""
    script = tmp_path / "x.py"
    script.write_text(
        f"import atexit, sys; sys.path.insert(0, {str(SCRIPTS)!r})\n"
        "from common import script\n"
        "atexit.register(print, 'cleaned up')\n"
        "def work(): print('began'); raise type('MXNetError', (Exception,), {})('MXNetError: words')\n"
        "script.run_to_end(work)\n"
    )
    done = subprocess.run([sys.executable, script], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (1, "began\n", "x.py: error: words\n")


ONE = {"CUDA_VISIBLE_DEVICES": "3"}


@pytest.mark.parametrize(
    ("environment", "found", "gpu"),
    [
        ({"LOCAL_RANK": "1"}, 4, 1),
        ({}, 1, 0),
        ({"LOCAL_RANK": "1", **ONE}, 1, 0),  # the launcher shows each process its own GPU
        ({"LOCAL_RANK": "1"}, 1, None),
        (ONE, 0, None),
    ],
)
def test_a_rank_uses_its_own_gpu(script: ModuleType, environment: dict[str, str], found: int, gpu: int | None) -> None:
    assert script.find_gpu(environment, found) == gpu


def run_torch(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_script(*words, script="train_mnist_torch.py", PYTHONPATH=str(REPOSITORY), **environment)


def test_options_of_the_script_for_pytorch_need_no_torch() -> None:
    done = run_torch("--help")
    assert done.returncode == 0
    assert [option for option in FIELD_OF_TORCH if f"--{option} " not in done.stdout.replace("\n", " \n")] == []
    done = run_torch("--data-dir", "d", "--kv-store", "dist_sync")
    assert done.returncode == 2
    assert "unrecognized arguments" in done.stderr.splitlines()[-1]
    done = run_torch()
    assert done.stderr.endswith("no data: set [data] url in cluster.toml, or add --data-dir (MNIST's files)\n")


def test_a_rank_that_does_not_join_is_an_error() -> None:
    port = str(find_port())
    where = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    done = run_torch("--data-dir", "d", "--dist-timeout", "1", python=real_torch(), **where)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("train_mnist_torch.py: error: the process group did not form: Timed out after")
    assert "1/2 clients joined" in last
