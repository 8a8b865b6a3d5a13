"""Train a multi-layer perceptron or LeNet on handwritten digits, on one machine or, distributed, on many.

Data is MNIST's four idx-ubyte files (--data-dir) or RecordIO files of 28 by 28 images (--data-train,
--data-val).
"""

import sys
from typing import Optional, Sequence

from common import errors, options

DEFAULTS = options.Defaults(network="mlp", batch_size=32, num_epochs=20, lr=0.05, wd=0.0001, num_classes=10)


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Train as the arguments say (default: the command line's); raises ScriptError or MXNet's own errors."""
    parser = options.make_parser(__doc__, ("mlp", "lenet"), DEFAULTS)
    chosen = options.parse(parser, sys.argv[1:] if arguments is None else arguments)
    # Here, because in a server or scheduler process importing MXNet is the whole job: it never returns.
    from common import data, fit, networks  # noqa: PLC0415 - see above

    if chosen.data_dir:
        source = data.mnist_source(chosen.data_dir, chosen.seed)
    else:
        source = data.record_source(chosen.data_train, chosen.data_val, chosen.seed, chosen.data_nthreads)
    fit.train(chosen, networks.BY_NAME[chosen.network](chosen.num_classes), source)


if __name__ == "__main__":
    errors.run(main)
