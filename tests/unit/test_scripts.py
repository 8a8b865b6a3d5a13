"""The training scripts as far as they go without MXNet; with it they run on real nodes in tests/sandbox."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import train

SCRIPTS = Path(train.__file__).parent / "scripts"
LAUNCHED = {
    "DMLC_ROLE": "worker",
    "DMLC_PS_ROOT_URI": "10.0.0.1",
    "DMLC_PS_ROOT_PORT": "9091",
    "DMLC_NUM_WORKER": "2",
    "DMLC_NUM_SERVER": "2",
}


class Common(NamedTuple):
    """The modules that the scripts share and that need no MXNet."""

    errors: ModuleType
    options: ModuleType
    schedule: ModuleType


@pytest.fixture(scope="module")
def common() -> Iterator[Common]:
    """Imported as on a node, where the scripts' folder is on the path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        from common import errors, options, schedule  # noqa: PLC0415 - found only now

        yield Common(errors, options, schedule)
    for name in [name for name in sys.modules if name.partition(".")[0] == "common"]:
        del sys.modules[name]


def run_script(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("DMLC_", "CLUSTER_"))}
    return subprocess.run(
        [sys.executable, SCRIPTS / "train_mnist.py", *words],
        env=env | environment, check=False, capture_output=True, text=True,
    )  # fmt: skip


def parse(common: Common, *words: str, **environment: str) -> Any:
    defaults = common.options.Defaults("mlp", 32, 20, 0.05, 0.0, 10)
    parser = common.options.make_parser("a test", ("mlp", "lenet"), defaults)
    return common.options.parse(parser, words, environment)


@pytest.mark.parametrize("path", sorted(SCRIPTS.rglob("*.py")), ids=lambda path: path.name)
def test_scripts_are_python_3_6(path: Path) -> None:
    """As far as its grammar goes."""
    ast.parse(path.read_text(), feature_version=(3, 6))


def test_help_needs_no_mxnet() -> None:
    done = run_script("--help")
    assert done.returncode == 0
    for option in ("--network", "--kv-store", "--gpus", "--data-train", "--model-prefix", "--disp-batches"):
        assert option in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "no data: give --data-dir"),
        (("--data-dir", "d", "--data-train", "a.rec"), "--data-dir excludes --data-train"),
        (("--data-dir", "d", "--data-val", "a.rec"), "--data-dir excludes --data-train"),
        (("--data-val", "a.rec"), "no data"),
        (("--data-train", "s3://b/train"), "--data-train s3://b/train: ends neither with .rec nor"),
        (("--data-train", "a.rec;b"), "ends neither with .rec nor"),
        (("--data-train", "a.rec", "--data-val", "val"), "--data-val val: ends neither"),
        (("--data-dir", "d", "--network", "vgg"), "invalid choice: 'vgg'"),
        (("--data-dir", "d", "--batch-size", "0"), "--batch-size: '0' is not a whole number from 1 up"),
        (("--data-dir", "d", "--batch-size", "many"), "'many' is not a whole number"),
        (("--data-dir", "d", "--lr", "-1"), "--lr: '-1' is not a number above 0"),
        (("--data-dir", "d", "--lr", "nan"), "'nan' is not a number above 0"),
        (("--data-dir", "d", "--lr-step-epochs", "3,x"), "'3,x' is not a list of whole numbers"),
        (("--data-dir", "d", "--gpus", "0,0"), "--gpus names a GPU twice"),
        (("--data-dir", "d", "--gpus", "-1"), "'-1' is not a list of whole numbers"),
        (("--data-dir", "d", "--gpus", "0,1,2", "--batch-size", "2"), "less than one per GPU"),
        (("--data-dir", "d", "--load-epoch", "3"), "--load-epoch needs --model-prefix"),
        (("--data-dir", "d", "--load-epoch", "20", "--model-prefix", "m"), "nothing to do"),
        (("--data-dir", "d", "--top-k", "11"), "only 10 classes"),
        (("--data-dir", "d", "--kv-store", "dist_sync"), "DMLC_ROLE, DMLC_PS_ROOT_URI"),
        (("--data-dir", "d", "--gc-type", "2bit"), "needs --kv-store dist_*"),
        (("--data-dir", "d", "--optimizer", "dcasgd"), "dcasgd is for --kv-store dist_async"),
        (("--data-dir", "d", "--batch", "2"), "unrecognized arguments: --batch 2"),
        (("--data-dir", "d", "--batch_size", "2"), "unrecognized arguments"),
        (("--data-dir", "d", "extra"), "unrecognized arguments: extra"),
    ],
)
def test_what_cannot_work_is_refused_before_mxnet_is_imported(words: tuple[str, ...], said: str) -> None:
    done = run_script(*words)
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("role", ["worker", "server", "scheduler"])
def test_every_role_refuses_to_train_alone_in_a_cluster(role: str) -> None:
    done = run_script("--data-dir", "d", "--kv-store", "local", **LAUNCHED | {"DMLC_ROLE": role})
    assert done.returncode == 2
    assert "every worker would train alone" in done.stderr


def test_without_mxnet_a_job_fails_with_words() -> None:
    done = run_script("--data-dir", "d", PYTHONPATH="")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "train_mnist.py: error: ModuleNotFoundError: No module named 'mxnet'"


def test_defaults(common: Common) -> None:
    options = parse(common, "--data-dir", "d")
    assert (options.kv_store, options.lr_step_epochs, options.gpus) == ("local", [10, 15], [])
    assert parse(common, "--data-dir", "d", **LAUNCHED).kv_store == "dist_sync"
    assert parse(common, "--data-dir", "d", "--num-epochs", "1").lr_step_epochs == []
    assert parse(common, "--data-dir", "d", "--num-epochs", "2").lr_step_epochs == [1]
    assert parse(common, "--data-dir", "d", "--lr-step-epochs", "").lr_step_epochs == []
    assert parse(common, "--data-dir", "d", "--gpus", "0, 2,").gpus == [0, 2]


def test_the_configured_data_is_read_where_none_is_given(common: Common) -> None:
    where = {"CLUSTER_DATA_URL": "s3://b/digits/"}
    assert parse(common, **where).data_dir == "s3://b/digits/"
    assert parse(common, "--data-dir", "d", **where).data_dir == "d"
    assert parse(common, "--data-train", "a.rec", **where).data_dir is None


@pytest.mark.parametrize("uri", ["a.rec", "a.rec;b.rec", "s3://b/train/", "/data/train/"])
def test_record_data(common: Common, uri: str) -> None:
    assert parse(common, "--data-train", uri).data_train == uri


@pytest.mark.parametrize(
    ("examples", "batch_size", "batches"),
    [([100], 10, 10), ([109], 10, 10), ([10], 10, 1), ([105, 95], 10, 10), ([15, 15], 10, 1), ([20, 11], 10, 1)],
)
def test_an_epoch_has_the_mean_number_of_batches(
    common: Common, examples: list[int], batch_size: int, batches: int
) -> None:
    assert common.schedule.batches_per_epoch(examples, batch_size) == batches


def test_a_part_without_a_batch_is_refused(common: Common) -> None:
    with pytest.raises(
        common.errors.ScriptError, match=r"worker 1's part .* has 9 examples, less than one batch of 10"
    ):
        common.schedule.batches_per_epoch([20, 9], 10)


@given(st.integers(0, 10_000), st.integers(1, 50))
def test_examples_are_split_evenly(common: Common, examples: int, workers: int) -> None:
    parts = common.schedule.split_examples(examples, workers)
    assert sum(parts) == examples
    assert len(parts) == workers
    assert max(parts) - min(parts) <= 1


@pytest.mark.parametrize(
    ("steps", "begin", "rate", "updates"),
    [
        ([], 0, 1.0, []),
        ([10, 15], 0, 1.0, [1000, 1500]),
        ([15, 10, 10], 0, 1.0, [1000, 1500]),
        ([10, 15], 10, 0.5, [500]),
        ([10, 15], 12, 0.5, [300]),
        ([10, 15], 15, 0.25, []),
    ],
)
def test_the_learning_rate_goes_on_where_it_was(
    common: Common, steps: list[int], begin: int, rate: float, updates: list[int]
) -> None:
    assert common.schedule.learning_rate(1.0, 0.5, steps, begin, 100) == (rate, updates)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            'Traceback (most recent call last):\n  [bt] (5) f()\nS3: Check failed: allow_null: :Open "/nope": No such',
            'S3: Open "/nope": No such',
        ),
        (
            'Traceback (most recent call last):\n  File "x.cc", line 1\nMXNetError: Compile with CUDA',
            "Compile with CUDA",
        ),
        ("[10:00:00] x.cc:9: it broke\nStack trace:\n  [bt] (0) libmxnet.so", "[10:00:00] x.cc:9: it broke"),
        ("plain", "plain"),
    ],
)
def test_mxnets_errors_lose_their_frames(common: Common, message: str, words: str) -> None:
    assert common.errors.plain_words(message) == words


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        ("errors.ScriptError('no GPU')", 1, "x.py: error: no GPU\n"),
        ("KeyboardInterrupt", 130, "x.py: error: interrupted\n"),
        ("type('MXNetError', (Exception,), {})('MXNetError: words')", 1, "x.py: error: words\n"),
    ],
)
def test_a_failed_worker_ends_at_once(tmp_path: Path, raised: str, code: int, said: str) -> None:
    """The kv-store's clean-up, an atexit or __del__, would wait for the other workers."""
    script = tmp_path / "x.py"
    script.write_text(
        f"import atexit, sys; sys.path.insert(0, {str(SCRIPTS)!r})\n"
        "from common import errors\n"
        "atexit.register(print, 'cleaned up')\n"
        "def main(_): print('began'); raise " + raised + "\n"
        "errors.run(main)\n"
    )
    done = subprocess.run([sys.executable, script], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (code, "began\n", said)
