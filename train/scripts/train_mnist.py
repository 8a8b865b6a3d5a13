"""Train a multi-layer perceptron or LeNet on handwritten digits, on one machine or, distributed, on many.

Data is MNIST's four idx-ubyte files (--data-dir) or RecordIO files of 28 by 28 images (--data-train,
--data-val).
"""

import sys
from typing import Any, Optional, Sequence

from common import errors, options

DEFAULTS = options.Defaults(network="mlp", batch_size=32, num_epochs=20, lr=0.05, wd=0.0001, num_classes=10)
_MEAN, _DEVIATION = 0.1307, 0.3081  # of MNIST's training images, whose pixels come as 0 to 1


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Train as the arguments say (default: the command line's); raises ScriptError or MXNet's own errors."""
    parser = options.make_parser(__doc__, ("mlp", "lenet"), DEFAULTS)
    chosen = options.parse(parser, sys.argv[1:] if arguments is None else arguments)
    # Here, because in a server or scheduler process importing MXNet is the whole job: it never returns.
    from common import data, fit  # noqa: PLC0415 - see above
    from networks import build  # noqa: PLC0415 - see above

    if chosen.benchmark:
        source = data.made_up_source(chosen)
    elif chosen.data_dir:
        source = data.mnist_source(chosen.data_dir, chosen.seed)
    else:
        source = data.record_source(chosen, image=data.MNIST_RECORDS, distort={})
    fit.train(chosen, build.for_options(chosen, prepare=_prepare), source)


def _prepare(pixels: Any) -> Any:
    """Move pixels to about mean 0 and deviation 1; part of the network, so that a saved model has it too."""
    return (pixels - _MEAN) / _DEVIATION


if __name__ == "__main__":
    errors.run(main)
