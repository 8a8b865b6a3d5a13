"""Runs a training script, from its arguments to its exit code; errors are messages, not tracebacks.

Does not import MXNet before it trains.
"""

import argparse
import logging
import os
import re
import sys
from typing import Any, Callable, NoReturn, Optional, Sequence

from common import ScriptError, network_names, options

FAILED = 1
INTERRUPTED = 130  # as a shell reports a command that Ctrl-C ended

# S3's answer in MXNet's message, with headers.
_S3_ANSWER = re.compile(
    r"(?:AWS S3 Error: HTTP/.*?)?<\?xml[^>]*> *<Error><Code>(\w+)</Code><Message>([^<]*)</Message>(.*?)</Error>"
)
_NAMED = re.compile("<(BucketName|Bucket|Key|Region)>([^<]*)<")


def run(
    description: str,
    defaults: options.Defaults,
    networks: Sequence[str] = tuple(network_names.BY_NAME),
    prepare: Optional[Callable[[Any], Any]] = None,
) -> None:
    """Trains one of the networks as the command line says. prepare: see networks.build."""
    parser = options.make_parser(description, networks, defaults)
    run_to_end(lambda: _train(options.parse(parser, sys.argv[1:]), prepare))


def _train(chosen: argparse.Namespace, prepare: Optional[Callable[[Any], Any]]) -> None:
    # Imported here, because in a server or scheduler process the import of MXNet never returns: it does all the work.
    import networks  # noqa: PLC0415 - see above

    from common import data, fit  # noqa: PLC0415 - see above

    if chosen.benchmark:
        source = data.made_up_source(chosen)
    elif chosen.data_dir:
        source = data.mnist_source(chosen.data_dir, chosen.seed)
    elif "rgb_mean" in chosen:
        image, distort = options.reader_settings(chosen), options.distortions(chosen)
        source = data.record_source(chosen, image=image, distort=distort)
    else:
        source = data.record_source(chosen, image=data.MNIST_RECORDS, distort={})
    network = networks.build(
        chosen.network, chosen.num_layers, chosen.num_classes, chosen.image_shape, dtype=chosen.dtype, prepare=prepare
    )
    fit.train(chosen, network, source)


def run_to_end(work: Callable[[], None]) -> None:
    """Runs `work`, and ends the process if it fails.

    A worker that fails ends without Python's clean-up: that would free the kv-store, which waits at a barrier for
    workers that never come, so that the job would neither end nor report the error.
    """
    try:
        work()
    except ScriptError as error:
        _end(FAILED, str(error))
    except KeyboardInterrupt:
        _end(INTERRUPTED, "interrupted")
    except Exception as error:  # the process boundary: a worker must not hang in clean-up
        if type(error).__name__ == "MXNetError":  # by name, because the import of mxnet may have failed
            _end(FAILED, plain_words(str(error)))
        logging.getLogger().exception("this is a bug in the script")
        _end(FAILED, f"{type(error).__name__}: {error}")


def _end(code: int, message: str) -> NoReturn:
    name = os.path.basename(sys.argv[0])
    print(f"{name}: error: {message}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def plain_words(message: str) -> str:
    """An MXNet error's message, without the C++ frames around it.

    MXNet 1.7 prints it last, after "Traceback" and indented frames; 1.5 prints it first, before "Stack trace".
    """
    lines = message.partition("Stack trace")[0].splitlines()
    words = [line.strip() for line in lines if line.strip() and not line.startswith((" ", "Traceback"))]
    text = " ".join(words) or message.strip()
    return _S3_ANSWER.sub(_s3_words, re.sub("^MXNetError: |Check failed: allow_null: :?", "", text))


def _s3_words(answer: "re.Match[str]") -> str:
    """S3's XML as one line."""
    named = [f"{name} {value}" for name, value in _NAMED.findall(answer[3])]
    return f"S3 says {answer[1]}: {'; '.join([answer[2], *named])}"
