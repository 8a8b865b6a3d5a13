"""`cluster data demo`: datasets by name."""

from pathlib import Path

import click
from rich.filesize import decimal

from cluster.app import App, pass_app
from train.data import digits


@click.command("demo", short_help="Write a small real dataset, without a download.")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@pass_app
def demo(app: App, *, folder: Path) -> None:
    """Write 1797 real handwritten digits into DIR, as MNIST's four files and as RecordIO shards.

    They come with scikit-learn: pip install 'mxnet-cluster[demo]'. 1500 are for training, 297 for validation.
    """
    written = digits.write_demo(folder)
    size = decimal(sum(size_bytes for _, size_bytes in written.files))
    app.say(
        f"{written.train_images} images to train with and {written.val_images} to validate with: "
        f"{len(written.files)} files, {size}, in {folder}"
    )
