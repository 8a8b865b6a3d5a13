"""Finds options that contradict each other or the environment. Does not import MXNet."""

import argparse
from typing import List, Mapping

from common import network_names

_DMLC = ("DMLC_ROLE", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "DMLC_NUM_WORKER", "DMLC_NUM_SERVER")


def find_problems(options: argparse.Namespace, environment: Mapping[str, str]) -> List[str]:
    """The message for every problem; the user sees the first."""
    return (
        _network_problems(options)
        + _data_problems(options)
        + model_problems(options, environment)
        + _fit_problems(options)
        + _cluster_problems(options, environment)
    )


def is_folder_or_records(uri: str) -> bool:
    """Whether the URI names RecordIO data: `a.rec`, `a.rec;b.rec`, or a folder, which ends with a slash."""
    return uri.endswith("/") or all(part.endswith(".rec") for part in uri.split(";"))


def _network_problems(options: argparse.Namespace) -> List[str]:
    problem = network_names.find_problem(options.network, options.num_layers, min(options.image_shape[1:]))
    return [problem] if problem else []


def _data_problems(options: argparse.Namespace) -> List[str]:
    if options.benchmark:
        given = [name for name in ("data_dir", "data_train", "data_val") if getattr(options, name)]
        return [f"--benchmark reads no data: leave out --{given[0].replace('_', '-')}"] if given else []
    problems = []
    if not options.data_dir and not options.data_train:
        folder = "" if "rgb_mean" in options else "--data-dir (idx-ubyte files), "
        problems.append(f"no data: add {folder}--data-train (RecordIO) or $CLUSTER_DATA_URL, or --benchmark 1")
    if options.data_dir and (options.data_train or options.data_val):
        problems.append("--data-dir excludes --data-train and --data-val")
    for name, uri in (("--data-train", options.data_train), ("--data-val", options.data_val)):
        if uri and not is_folder_or_records(uri):
            problems.append(f"{name} {uri}: ends neither with .rec nor, as a folder does, with a slash")
    for name, index, uri in (
        ("train", options.data_train_idx, options.data_train),
        ("val", options.data_val_idx, options.data_val),
    ):
        if index and not (uri and uri.endswith(".rec") and ";" not in uri):
            problems.append(f"--data-{name}-idx is the index of one .rec file, and --data-{name} is none")
    return problems


def model_problems(options: argparse.Namespace, environment: Mapping[str, str]) -> List[str]:
    """The problems of the options for checkpoints."""
    problems = []
    for name, words in (
        ("load_epoch", "--load-epoch needs --model-prefix, where the model was saved"),
        ("resume", "--resume needs --model-prefix, where the checkpoints are"),
        ("checkpoint_batches", "--checkpoint-batches needs --model-prefix, where to save them"),
    ):
        if getattr(options, name) and not options.model_prefix:
            problems.append(words)
    is_later_attempt = environment.get("CLUSTER_ATTEMPT", "1") != "1"  # of the same job, in the same place
    if options.auto_prefix and (options.load_epoch or (options.resume and not is_later_attempt)):
        problems.append("--model-prefix auto is a new place for every job: to resume, name it, as in s3://bucket/model")
    if options.auto_prefix and options.model_prefix == "auto":
        problems.append("--model-prefix auto: neither $CLUSTER_OUTPUT_URL nor $CLUSTER_OUTPUT_DIR is set")
    if options.resume and options.load_epoch and not is_later_attempt:
        problems.append("--resume finds the epoch itself: leave out --load-epoch")
    prefix = options.model_prefix or ""
    if "://" in prefix and not prefix.startswith("s3://"):
        problems.append(f"--model-prefix {prefix}: neither a local path nor s3://BUCKET/PREFIX")
    if prefix.startswith("s3://") and not all(prefix[len("s3://") :].partition("/")[::2]):
        problems.append(f"--model-prefix {prefix}: a bucket and a prefix are needed, as in s3://bucket/model")
    elif prefix.endswith("/"):
        problems.append(f"--model-prefix {prefix}: is a folder; add the beginning of the names, as in {prefix}model")
    if options.resume and not can_resume(options, environment):
        problems.append(
            "--resume with --kv-store dist_async needs a --model-prefix on s3:// or a volume, for all workers"
        )
    return problems


def can_resume(options: argparse.Namespace, environment: Mapping[str, str]) -> bool:
    """Whether all workers can continue with the same checkpoint; with dist_async, they cannot send it to each other."""
    volumes = [f"{mount}/" for mount in environment.get("CLUSTER_VOLUMES", "").split(":") if mount]
    is_shared = (options.model_prefix or "").startswith(("s3://", *volumes))
    return is_shared or environment.get("DMLC_NUM_WORKER", "1") == "1" or options.kv_store != "dist_async"


def _fit_problems(options: argparse.Namespace) -> List[str]:
    problems = []
    if options.load_epoch and options.load_epoch >= options.num_epochs:
        problems.append(f"--load-epoch {options.load_epoch}: nothing to do, --num-epochs is {options.num_epochs}")
    if options.top_k > options.num_classes:
        problems.append(f"--top-k {options.top_k}: there are only {options.num_classes} classes")
    if len(set(options.gpus)) < len(options.gpus):
        problems.append("--gpus names a GPU twice")
    if options.batch_size < len(options.gpus):
        problems.append(f"--batch-size {options.batch_size} is less than one per GPU")
    if options.macrobatch_size and options.macrobatch_size < options.batch_size:
        problems.append(f"--macrobatch-size {options.macrobatch_size} is less than --batch-size {options.batch_size}")
    if options.dtype == "float16" and not options.gpus:
        problems.append("--dtype float16 needs --gpus: MXNet's convolutions do not support half precision on a CPU")
    if options.gc_type != "none" and options.dtype == "float16":
        problems.append("--gc-type only compresses float32 gradients: leave out --dtype float16")
    return problems


def _cluster_problems(options: argparse.Namespace, environment: Mapping[str, str]) -> List[str]:
    distributed = options.kv_store.startswith("dist")
    missing = [name for name in _DMLC if not environment.get(name)]
    problems = []
    if distributed and missing:
        problems.append(
            f"--kv-store {options.kv_store} needs what launch.py sets ({', '.join(missing)} missing): "
            "start it with `cluster train`, or use --kv-store local"
        )
    if not distributed and "DMLC_ROLE" in environment:
        problems.append(
            f"--kv-store {options.kv_store} under launch.py: every worker would train on its own and the servers "
            "would wait forever; use --kv-store dist_sync"
        )
    if options.gc_type != "none" and not distributed:
        problems.append(f"--gc-type {options.gc_type} needs --kv-store dist_*: it compresses network traffic")
    if options.optimizer == "dcasgd" and options.kv_store != "dist_async":
        problems.append("--optimizer dcasgd is for --kv-store dist_async")
    return problems
