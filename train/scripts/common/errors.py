"""How a training script ends: with the right exit code, at once, and with words instead of a traceback."""

import logging
import os
import re
import sys
from typing import Callable, NoReturn, Optional, Sequence

FAILED = 1
INTERRUPTED = 130  # what a shell says of a command that Ctrl-C ended


# MXNet says what S3 answered, headers and all.
_S3_ANSWER = re.compile(
    r"(?:AWS S3 Error: HTTP/.*?)?<\?xml[^>]*> *<Error><Code>(\w+)</Code><Message>([^<]*)</Message>(.*?)</Error>"
)
_NAMED = re.compile("<(BucketName|Bucket|Key|Region)>([^<]*)<")


class ScriptError(Exception):
    """Training cannot begin or go on; the message says why and what to do."""


def plain_words(message: str) -> str:
    """What an MXNet error says, without the C++ frames around it.

    MXNet 1.7 puts its words last, behind "Traceback" and indented frames; 1.5 puts them first, before "Stack
    trace".
    """
    lines = message.partition("Stack trace")[0].splitlines()
    words = [line.strip() for line in lines if line.strip() and not line.startswith((" ", "Traceback"))]
    text = " ".join(words) or message.strip()
    return _S3_ANSWER.sub(_s3_words, re.sub("^MXNetError: |Check failed: allow_null: :?", "", text))


def _s3_words(answer: "re.Match[str]") -> str:
    """What S3's XML says, in a line."""
    named = [f"{name} {value}" for name, value in _NAMED.findall(answer[3])]
    return f"S3 says {answer[1]}: {'; '.join([answer[2], *named])}"


def run(main: Callable[[Optional[Sequence[str]]], None]) -> None:
    """Run a script's `main` on the command line's arguments and end the process.

    A worker that fails ends here without Python's clean-up: that would free the kv-store, which waits at a
    barrier for workers that will never come, so that the job would neither end nor tell.
    """
    try:
        main(None)
    except ScriptError as error:
        _end(FAILED, str(error))
    except KeyboardInterrupt:
        _end(INTERRUPTED, "interrupted")
    except Exception as error:  # the process boundary: a worker must not hang in clean-up
        if type(error).__name__ == "MXNetError":  # mxnet may be what cannot be imported
            _end(FAILED, plain_words(str(error)))
        logging.getLogger().exception("this is a fault in the script")
        _end(FAILED, f"{type(error).__name__}: {error}")


def _end(code: int, message: str) -> NoReturn:
    name = os.path.basename(sys.argv[0])
    print(f"{name}: error: {message}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
