"""Runs a training script, from its arguments to its exit code; errors are messages, not tracebacks.

Does not import MXNet before it trains.
"""

import argparse
import logging
import os
import re
import sys
import traceback
from typing import Any, Callable, Mapping, NoReturn, Optional, Sequence

from common import ScriptError, network_names, options

FAILED = 1
INTERRUPTED = 130  # as a shell reports a command that Ctrl-C ended


def run(
    description: Optional[str],
    networks: Sequence[str] = tuple(network_names.BY_NAME),
    *,
    without: Sequence[str] = (),
    prepare: Optional[Callable[[Any], Any]] = None,
    **defaults: Any,
) -> None:
    """Trains one of the networks as the command line says.

    without, defaults: see options.make_parser. prepare: see networks.build.
    """
    parser = options.make_parser(description, networks, without=without, **defaults)
    run_to_end(lambda: _train(options.parse(parser, sys.argv[1:]), prepare))


def _train(chosen: argparse.Namespace, prepare: Optional[Callable[[Any], Any]]) -> None:
    # Imported here, because in a server or scheduler process the import of MXNet never returns: it does all the work.
    import networks  # noqa: PLC0415 - see above

    from common import fit  # noqa: PLC0415 - see above

    network = networks.build(
        chosen.network, chosen.num_layers, chosen.num_classes, chosen.image_shape, dtype=chosen.dtype, prepare=prepare
    )
    fit.train(chosen, network)


def log_as(rank: int) -> None:
    """Writes reports to standard output, in the form that MXNet's tools/parse_log.py reads."""
    logging.basicConfig(
        stream=sys.stdout, level=logging.INFO, format=f"%(asctime)s Node[{rank}] %(message)s",
        datefmt="%H:%M:%S",
    )  # fmt: skip


def run_to_end(work: Callable[[], None]) -> None:
    """Runs `work`, and ends the process if it fails.

    A worker that fails ends without Python's clean-up: that would free the kv-store, which waits at a barrier for
    workers that never come, so that the job would neither end nor report the error.
    """
    try:
        work()
    except (ScriptError, OSError) as error:
        _end(FAILED, str(error))
    except KeyboardInterrupt:
        _end(INTERRUPTED, "interrupted")
    except Exception as error:  # noqa: BLE001 - the process boundary: a worker must not hang in clean-up
        if type(error).__name__ == "MXNetError":  # by name, because the import of mxnet may have failed
            _end(FAILED, plain_words(str(error)))
        traceback.print_exc()
        _end(FAILED, f"{type(error).__name__}: {error}")


def _end(code: int, message: str) -> NoReturn:
    name = os.path.basename(sys.argv[0])
    print(f"{name}: error: {message}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def plain_words(message: str) -> str:
    """An MXNet error's message, without the C++ frames: MXNet 1.7 prints it after them, 1.5 before "Stack trace"."""
    last = message.partition("Stack trace")[0].strip().splitlines()[-1:] or [message]
    return re.sub("MXNetError: |Check failed: allow_null: :?", "", last[0])


def find_gpu(environment: Mapping[str, str], found: int) -> Optional[int]:
    """The number of this rank's own GPU among the `found` ones; None without one. Pure."""
    local_rank = int(environment.get("LOCAL_RANK") or 0)
    if local_rank < found:
        return local_rank
    # A launcher may show every process only its own GPU.
    return 0 if found == 1 and environment.get("CUDA_VISIBLE_DEVICES") else None
