"""Train a multi-layer perceptron or LeNet on handwritten digits with PyTorch's DistributedDataParallel.

Runs as one process, or as one rank of several: `torchrun train_mnist_torch.py`, or any launcher that sets RANK,
WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. Data is MNIST's four idx-ubyte files (--data-dir) or RecordIO files
of 28 by 28 images (--data-train, --data-val), local or in S3.
"""

import sys

from common import script
from common.options import Defaults
from ddp import options

DEFAULTS = Defaults(network="mlp", batch_size=32, num_epochs=20, lr=0.05, wd=0.0001, num_classes=10)


def main() -> None:
    """Trains as the command line says."""
    chosen = options.parse(__doc__, ("mlp", "lenet"), DEFAULTS, sys.argv[1:])

    def train() -> None:
        from ddp import fit  # noqa: PLC0415 - imports torch, which takes seconds, and which --help does not need

        fit.train(chosen)

    script.run_to_end(train)


if __name__ == "__main__":
    main()
