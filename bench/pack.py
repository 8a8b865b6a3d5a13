"""Compares `cluster data pack` with MXNet's tools/im2rec.py: the same images, options and number of processes."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from bench.support.command import CLUSTER
from bench.support.rounds import interleave

sys.path += [str(Path(__file__).parents[1] / "tests" / "support" / "hosts")]
from real_mxnet import real_mxnet, run_mxnet

SMALL = ((500, 375), (375, 500), (500, 333))
LARGE = ((1280, 960), (1024, 768), (800, 600))
IMAGES = 2000
OPTIONS = ("--resize", "256", "--quality", "95")
SETS = {"500 x 375": (SMALL,), "500 x 375 and, every third, up to 1280 x 960": (SMALL, SMALL, LARGE)}


def write_images(folder: Path, count: int, sizes: tuple[tuple[tuple[int, int], ...], ...]) -> None:
    """Writes JPEGs that are cut out of two blurred patterns, each with different noise; the same in every run."""
    patterns = [np.random.default_rng(seed).integers(0, 256, (54, 80, 3), np.uint8) for seed in (1, 2)]
    photographs = [Image.fromarray(pattern).resize((640, 427), Image.Resampling.BICUBIC) for pattern in patterns]
    for number in range(count):
        source = np.random.default_rng(number)
        of_size = sizes[number % len(sizes)]
        width, height = of_size[source.integers(len(of_size))]
        photograph = photographs[source.integers(2)]
        part = source.uniform(0.6, 1)
        across = int(part * min(photograph.width, photograph.height * width / height))
        down = across * height // width
        left = int(source.integers(photograph.width - across + 1))
        top = int(source.integers(photograph.height - down + 1))
        picture = photograph.crop((left, top, left + across, top + down)).resize((width, height))
        noisy = np.asarray(picture) + source.normal(0, 4, (height, width, 3))
        path = folder / f"class-{number % 10}" / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path, quality=92)


def contenders(photos: Path, out: Path, processes: int) -> dict[str, Callable[[], object]]:
    """Returns both contenders, which pack the files of a list into shards with indexes.

    im2rec.py creates the list, which is not timed.
    """
    (tool,) = run_mxnet("import os; print(os.path.join(os.path.dirname(mx.__file__), 'tools', 'im2rec.py'))")
    out.mkdir()
    theirs = [real_mxnet(), "-W", "ignore", tool]
    subprocess.run([*theirs, "--list", "--recursive", out / "list", photos], check=True, capture_output=True)

    def ours() -> None:
        words = [out / "list.lst", out / "ours", "--root", photos, "--shards", "1", "--processes", str(processes)]
        subprocess.run([CLUSTER, "data", "pack", *words, *OPTIONS, "--replace"], check=True, capture_output=True)

    def im2rec() -> None:
        words = ["--num-thread", str(processes), *OPTIONS, out / "list", photos]
        subprocess.run([*theirs, *words], check=True, capture_output=True)

    return {"cluster data pack": ours, "im2rec.py": im2rec}


def compare_quality(photos: Path, out: Path) -> str:
    """Returns how close both come to the same picture resized with the best filter, over a sample."""
    program = """
        import glob, numpy
        def read(idx, rec):
            file = mx.recordio.MXIndexedRecordIO(idx, rec, "r")
            return {key: mx.recordio.unpack_img(file.read_idx(key))[1] for key in sorted(file.keys)[::20]}
        out = sys.argv[1]
        numpy.savez(out + "/ours.npz", **{str(k): v for k, v in read(
            out + "/ours/index/part-00000.idx", out + "/ours/part-00000.rec").items()})
        numpy.savez(out + "/theirs.npz", **{str(k): v for k, v in read(out + "/list.idx", out + "/list.rec").items()})
    """
    run_mxnet(program, out)
    paths = {line.split("\t")[0]: photos / line.split("\t")[-1] for line in (out / "list.lst").read_text().splitlines()}
    found = []
    with np.load(out / "ours.npz") as ours, np.load(out / "theirs.npz") as theirs:
        for key in ours.files:
            height, width, _ = ours[key].shape
            with Image.open(paths[key]) as picture:
                best = np.asarray(picture.resize((width, height), Image.Resampling.LANCZOS))[:, :, ::-1]
            found.append([find_psnr(ours[key], best), find_psnr(theirs[key], best)])
    mine, other = np.mean(found, axis=0)
    return f"PSNR against a Lanczos filter, mean of {len(found)}: ours {mine:.1f} dB, im2rec.py's {other:.1f} dB"


def find_psnr(one: np.ndarray, other: np.ndarray) -> float:
    """Returns the PSNR of two images in dB."""
    return float(10 * np.log10(255**2 / np.square(one.astype(float) - other).mean()))


def run() -> str:
    """Runs the benchmark, with one process per core, and returns its section of RESULTS.md."""
    processes = os.cpu_count() or 1
    lines = ["## Packing images", ""]
    lines += [f"{IMAGES} JPEGs, `{' '.join(OPTIONS)}`, {processes} processes each, start of Python included.", ""]
    lines += ["| images | what | median s | min | max | images/s | times as fast |", "|---|---|---|---|---|---|---|"]
    notes = []
    for name, sizes in SETS.items():
        with tempfile.TemporaryDirectory() as folder:
            photos, out = Path(folder, "photos"), Path(folder, "out")
            write_images(photos, IMAGES, sizes)
            timings = interleave(contenders(photos, out, processes))
            slowest = timings[-1].median_s
            lines += [
                f"| {name} | {timing.name} | {timing.median_s:.2f} | {min(timing.seconds):.2f} "
                f"| {max(timing.seconds):.2f} | {IMAGES / timing.median_s:.0f} | {slowest / timing.median_s:.2f} |"
                for timing in timings
            ]
            notes.append(f"- {name}: {compare_quality(photos, out)}")
    return "\n".join([*lines, "", *notes, "", "- all: `python -m bench pack`", ""])
