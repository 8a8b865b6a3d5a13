"""What the training scripts make of their options; without MXNet."""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from training_scripts import script_modules

LAUNCHED = {
    "DMLC_ROLE": "worker",
    "DMLC_PS_ROOT_URI": "10.0.0.1",
    "DMLC_PS_ROOT_PORT": "9091",
    "DMLC_NUM_WORKER": "2",
    "DMLC_NUM_SERVER": "2",
}


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with script_modules("common.options") as (module,):
        yield module


def parse(script: ModuleType, *words: str, **environment: str) -> Any:
    defaults = script.Defaults("mlp", 32, 20, 0.05, 0.0, 10)
    parser = script.make_parser("a test", ("mlp", "lenet"), defaults)
    return script.parse(parser, words, environment)


def test_defaults(script: ModuleType) -> None:
    options = parse(script, "--data-dir", "d")
    assert (options.kv_store, options.lr_step_epochs, options.gpus) == ("local", [10, 15], [])
    assert parse(script, "--data-dir", "d", **LAUNCHED).kv_store == "dist_sync"
    assert parse(script, "--data-dir", "d", "--num-epochs", "1").lr_step_epochs == []
    assert parse(script, "--data-dir", "d", "--num-epochs", "2").lr_step_epochs == [1]
    assert parse(script, "--data-dir", "d", "--lr-step-epochs", "").lr_step_epochs == []
    assert parse(script, "--data-dir", "d", "--gpus", "0, 2,").gpus == [0, 2]


def test_the_configured_data_is_read_where_none_is_given(script: ModuleType) -> None:
    where = {"CLUSTER_DATA_URL": "s3://b/digits/"}
    assert parse(script, **where).data_dir == "s3://b/digits/"
    assert parse(script, "--data-dir", "d", **where).data_dir == "d"
    assert parse(script, "--data-train", "a.rec", **where).data_dir is None


def parse_images(script: ModuleType, *words: str, **environment: str) -> Any:
    images = script.Images((3, 28, 28), 4, (1.0, 2.0, 3.0), (1.0, 1.0, 1.0), {"random-mirror": True})
    defaults = script.Defaults("resnet", 128, 300, 0.05, 0.0, 10, 1, (200, 250), 50000, images)
    parser = script.make_parser("a test", ("resnet", "vgg", "mlp"), defaults)
    return script.parse(parser, words, environment)


def test_the_configured_data_has_folders_of_images(script: ModuleType) -> None:
    where = {"CLUSTER_DATA_URL": "s3://b/cifar"}
    options = parse_images(script, **where)
    assert (options.data_train, options.data_val) == ("s3://b/cifar/train/", "s3://b/cifar/val/")
    assert parse_images(script, "--data-val", "", **where).data_val == ""
    options = parse_images(script, "--data-train", "a.rec", **where)
    assert (options.data_train, options.data_val) == ("a.rec", None)
    options = parse_images(script, "--benchmark", "1", **where)
    assert (options.data_train, options.data_val, options.num_epochs, options.num_examples) == (None, None, 1, None)


def test_defaults_of_images(script: ModuleType) -> None:
    options = parse_images(script, "--data-train", "a.rec")
    assert (options.num_epochs, options.lr_step_epochs, options.num_examples) == (300, [200, 250], 50000)
    assert parse_images(script, "--data-train", "a.rec", "--num-examples", "0").num_examples == 0
    assert script.distortions(options) == {"rand_mirror": True}
    settings = script.reader_settings(options)
    assert settings["data_shape"] == (3, 28, 28)
    assert (settings["mean_g"], settings["std_b"], settings["pad"], settings["fill_value"]) == (2.0, 1.0, 4, 127)
    words = ("--random-mirror", "0", "--random-crop", "--max-random-h", "36", "--min-random-aspect-ratio", "0.75")
    options = parse_images(script, "--data-train", "a.rec", *words)
    found = script.distortions(options)
    assert found == {"rand_crop": True, "random_h": 36, "min_aspect_ratio": 0.75}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--network", "vgg"), "--network vgg needs images of at least 32 by 32 pixels"),
        (("--num-layers", "50", "--image-shape", "3,29,29"), ""),
        (("--num-layers", "51"), "--num-layers 51: --network resnet for images of 28 pixels has 8, 14, 20, 26"),
        (("--num-layers", "110", "--image-shape", "3,224,224"), "has 18, 34, 50, 101, 152, 200, 269 layers"),
        (("--image-shape", "3,224"), "'3,224' is not an image's channels"),
        (("--image-shape", "2,28,28"), "'2,28,28' is not an image's channels"),
        (("--rgb-mean", "1,2"), "'1,2' is not three numbers"),
        (("--rgb-mean", "1,nan,2"), "'1,nan,2' is not three numbers"),
        (("--random-crop", "yes"), "'yes' is neither 0 nor 1"),
    ],
)
def test_images_that_cannot_work_are_refused(
    script: ModuleType, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if not said:
        parse_images(script, "--data-train", "a.rec", *words)
        return
    with pytest.raises(SystemExit):
        parse_images(script, "--data-train", "a.rec", *words)
    assert said in capsys.readouterr().err


def test_an_automatic_prefix_is_in_the_jobs_output(script: ModuleType) -> None:
    auto = ("--data-dir", "d", "--model-prefix", "auto")
    folder = {"CLUSTER_OUTPUT_DIR": "/home/x/output"}
    assert parse(script, *auto, **folder).model_prefix == "/home/x/output/model"
    url = {"CLUSTER_OUTPUT_URL": "s3://b/results/job-1/"}
    assert parse(script, *auto, **folder, **url).model_prefix == "s3://b/results/job-1/model"


def test_to_resume_without_steps_all_workers_must_read_alike(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--data-dir", "d", "--resume", "--kv-store", "dist_async", "--model-prefix")
    assert parse(script, *words, "s3://b/m", **LAUNCHED).resume
    with pytest.raises(SystemExit):
        parse(script, *words, "m", **LAUNCHED)
    assert "needs an s3:// --model-prefix" in capsys.readouterr().err


@pytest.mark.parametrize("uri", ["a.rec", "a.rec;b.rec", "s3://b/train/", "/data/train/"])
def test_record_data(script: ModuleType, uri: str) -> None:
    assert parse(script, "--data-train", uri).data_train == uri
