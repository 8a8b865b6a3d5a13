"""What train_cifar10.py and train_imagenet.py do; they differ in their defaults."""

import sys
from typing import Callable, Optional, Sequence

from networks import names

from common import options


def main_of(description: str, defaults: options.Defaults) -> Callable[[Optional[Sequence[str]]], None]:
    """The script's main function: trains as its arguments say (None: the command line's).

    It raises ScriptError or MXNet's own errors.
    """

    def main(arguments: Optional[Sequence[str]] = None) -> None:
        parser = options.make_parser(description, tuple(names.BY_NAME), defaults)
        chosen = options.parse(parser, sys.argv[1:] if arguments is None else arguments)
        # Here, because in a server or scheduler process importing MXNet is the whole job: it never returns.
        from networks import build  # noqa: PLC0415 - see above

        from common import data, fit  # noqa: PLC0415 - see above

        if chosen.benchmark:
            source = data.made_up_source(chosen)
        else:
            source = data.record_source(
                chosen, image=options.reader_settings(chosen), distort=options.distortions(chosen)
            )
        fit.train(chosen, build.for_options(chosen), source)

    return main
