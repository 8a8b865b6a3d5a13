"""Datasets by name: from a server that behaves well or badly to files that MXNet reads."""

import gzip
import hashlib
import io
import random
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from foundation.errors import ClusterError
from foundation.progress import Event, silent
from real_mxnet import run_mxnet
from train.data import convert
from train.data import fetch as fetching
from train.data.convert import TRAIN_IMAGES, TRAIN_LABELS, VAL_IMAGES, VAL_LABELS
from train.data.datasets import DATASETS, Dataset, Source
from train.data.fetch import fetch, move_into, workplace
from train.data.recordio import decode_image, read_records

DRAW = random.Random(7)
Answer = Callable[[BaseHTTPRequestHandler, bytes], None]


class Mirror:
    """A server of files. answers: what it does in turn, instead of giving the file as it was asked for."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.answers: list[Answer] = []
        self.asked: list[tuple[str, str | None]] = []
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                mirror.asked.append((self.path, self.headers["Range"]))
                content = mirror.files.get(self.path.removeprefix("/"))
                if content is None:
                    self.send_error(404)
                    return
                (mirror.answers.pop(0) if mirror.answers else give)(self, content)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"


def give(handler: BaseHTTPRequestHandler, content: bytes, *, most: int | None = None) -> None:
    begin = int((handler.headers["Range"] or "bytes=0-")[len("bytes=") : -1])
    handler.send_response(206 if begin else 200)
    handler.send_header("Content-Length", str(len(content) - begin))
    handler.end_headers()
    handler.wfile.write(content[begin:][:most])


def cut(after_bytes: int) -> Answer:
    return lambda handler, content: give(handler, content, most=after_bytes)


def give_all(handler: BaseHTTPRequestHandler, content: bytes) -> None:
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(content)


def page(handler: BaseHTTPRequestHandler, _: bytes) -> None:
    give_all(handler, b"<html>moved")


def give_another(handler: BaseHTTPRequestHandler, content: bytes) -> None:
    give_all(handler, b"x" * len(content))


def give_more(handler: BaseHTTPRequestHandler, content: bytes) -> None:
    give_all(handler, content + b"x" * 100)


def refuse(status: int) -> Answer:
    return lambda handler, _: handler.send_error(status)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "PAUSE_S", 0.0)


@pytest.fixture
def mirrors() -> Iterator[list[Mirror]]:
    made = [Mirror(), Mirror()]
    yield made
    for mirror in made:
        mirror.server.shutdown()
        mirror.server.server_close()


def source(mirrors: list[Mirror], name: str, content: bytes) -> Source:
    for mirror in mirrors:
        mirror.files[name] = content
    return Source(
        name=name,
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        mirrors=tuple(mirror.url for mirror in mirrors),
    )


def load(wanted: Source, folder: Path, events: list[Event]) -> int:
    """Download it; how many bytes were told to have come, in all."""
    come: list[int] = []
    fetching.download(wanted, folder, report=events.append, advance=come.append)
    return sum(come)


CONTENT = DRAW.randbytes(1_000_000)


@pytest.mark.parametrize(
    ("first", "asked", "warned"),
    [
        ([], ([None], []), None),
        # It is asked for the rest where it breaks off, and begins anew where it does not know how to.
        ([cut(400_000), cut(100_000)], ([None, "bytes=400000-", "bytes=500000-"], []), None),
        ([cut(400_000), give_all], ([None, "bytes=400000-"], []), None),
        ([refuse(503), refuse(429)], ([None] * 3, []), None),
        ([refuse(404)], ([None], [None]), "404 Not Found; trying the next mirror"),
        # What has come from a mirror that gives up is not asked for again.
        ([cut(100_000)] + [cut(0)] * 3, ([None] + ["bytes=100000-"] * 3, ["bytes=100000-"]), "after 100000 of 1000000"),
        # Another file: of the same size, longer, or an answer that is none.
        ([give_another], ([None], [None]), "not the file that was published"),
        ([give_more], ([None], [None]), "not the file that was published"),
        # A page in its place looks like a beginning until the end.
        ([page] * 4, ([None, *["bytes=11-"] * 3], ["bytes=11-", None]), "ended after 11 of 1000000 bytes, 4 times"),
    ],
)
def test_a_file_comes_whole_or_from_the_next_mirror(
    mirrors: list[Mirror],
    tmp_path: Path,
    *,
    first: list[Answer],
    asked: tuple[list[str | None], list[str | None]],
    warned: str | None,
) -> None:
    events: list[Event] = []
    wanted = source(mirrors, "file", CONTENT)
    mirrors[0].answers = list(first)
    come = load(wanted, tmp_path, events)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert tuple([ranges for _, ranges in mirror.asked] for mirror in mirrors) == asked
    assert come == len(CONTENT)
    assert [warned in event.what for event in events] == [True] if warned else not events


def test_what_no_mirror_has_is_said_of_each(mirrors: list[Mirror], tmp_path: Path) -> None:
    wanted = source(mirrors, "file", CONTENT)
    mirrors[0].files.clear()
    mirrors[1].answers = [refuse(503)] * fetching.ATTEMPTS
    with pytest.raises(ClusterError) as caught:
        fetching.download(wanted, tmp_path, report=silent, advance=lambda _: None)
    assert f"{mirrors[0].url}/file: 404 Not Found" in caught.value.message
    assert f"{mirrors[1].url}/file: 503 Service Unavailable, 4 times" in caught.value.message
    assert not list(tmp_path.iterdir())


def test_a_mirror_that_is_not_there_is_not_waited_for(mirrors: list[Mirror], tmp_path: Path) -> None:
    wanted = source(mirrors, "file", CONTENT)
    wanted = replace(wanted, mirrors=("http://127.0.0.1:9", "file:///etc", *wanted.mirrors))
    events: list[Event] = []
    load(wanted, tmp_path, events)
    assert ["refused" in events[0].what, "not an http" in events[1].what] == [True, True]


def test_an_interrupted_download_is_gone_on_with_and_a_whole_one_is_kept(mirrors: list[Mirror], tmp_path: Path) -> None:
    wanted = source(mirrors, "file", CONTENT)
    (tmp_path / "file.part").write_bytes(CONTENT[:700_000])
    assert load(wanted, tmp_path, []) == load(wanted, tmp_path, []) == len(CONTENT)
    assert mirrors[0].asked == [("/file", "bytes=700000-")]
    (tmp_path / "file").write_bytes(b"x")
    load(wanted, tmp_path, [])
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_what_another_file_left_does_not_stay(mirrors: list[Mirror], tmp_path: Path) -> None:
    wanted = source(mirrors, "file", CONTENT)
    (tmp_path / "file.part").write_bytes(b"x" * 700_000)
    assert load(wanted, tmp_path, []) == len(CONTENT)
    assert (tmp_path / "file").read_bytes() == CONTENT


# --- conversion


def mnist(mirrors: list[Mirror]) -> tuple[Dataset, dict[str, bytes]]:
    """MNIST with 13 and 5 images of 6 by 4; and what its files are, unpacked."""
    files = {}
    for images, labels, count in (
        (TRAIN_IMAGES, TRAIN_LABELS, 13),
        (VAL_IMAGES, VAL_LABELS, 5),
    ):
        files[images] = convert.encode_idx((count, 6, 4), DRAW.randbytes(count * 24))
        files[labels] = convert.encode_idx((count,), bytes(DRAW.randrange(10) for _ in range(count)))
    sources = tuple(source(mirrors, f"{name}.gz", gzip.compress(content)) for name, content in files.items())
    return replace(DATASETS["mnist"], sources=sources), files


def cifar(mirrors: list[Mirror], *, without: str = "") -> tuple[Dataset, dict[str, bytes]]:
    """CIFAR-10 with 4 images in each batch, which do not stand in their order; and its batches."""
    names = [convert.CIFAR_VAL, *reversed(convert.CIFAR_TRAIN)]
    batches = {name: b"".join(bytes([at % 10]) + DRAW.randbytes(3072) for at in range(4)) for name in names}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in {**batches, "../evil": b"x", "readme.html": b"x"}.items():
            if name != without:
                member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    wanted = source(mirrors, convert.CIFAR_ARCHIVE, packed.getvalue())
    return replace(DATASETS["cifar10"], sources=(wanted,)), batches


def read_part(folder: Path) -> list[list[tuple[int, int, str, bytes]]]:
    """By shard: each record's id and label, and its image's mode and pixels."""
    shards = []
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            records = [decode_image(payload, name=path.name) for payload in read_records(file, name=path.name)]
        images = [Image.open(io.BytesIO(record.image)) for record in records]
        shards.append(
            [
                (record.record_id, int(record.labels[0]), image.mode, image.tobytes())
                for record, image in zip(records, images, strict=True)
            ]
        )
    return shards


def run(dataset: Dataset, tmp_path: Path, *, shards: int | None = None) -> Any:
    folder = tmp_path / "out"
    with workplace(folder) as work:
        made = fetch(dataset, work, shards=shards, cache=tmp_path / "cache", report=silent, advance=lambda _: None)
        return move_into(made, work, folder)


def test_mnist_comes_in_both_formats(mirrors: list[Mirror], tmp_path: Path) -> None:
    dataset, files = mnist(mirrors)
    written = run(dataset, tmp_path, shards=3)
    out = tmp_path / "out"
    assert (written.train_images, written.val_images) == (13, 5)
    assert {name: (out / name).read_bytes() for name in files} == files
    assert {str(path.relative_to(out)) for path, _ in written.files} == {*files, *dataset.shard_names(3)}
    assert all(path.stat().st_size == size for path, size in written.files)
    assert sorted(path.name for path in out.iterdir()) == sorted([*files, "train", "val"])  # and nothing temporary
    train = read_part(out / "train")
    assert [len(shard) for shard in train] == [4, 4, 5]
    pixels, labels = files[TRAIN_IMAGES][16:], files[TRAIN_LABELS][8:]
    assert list(chain(*train)) == [(at, labels[at], "L", pixels[at * 24 :][:24]) for at in range(13)]
    assert len(read_part(out / "val")[0]) == 5


def test_cifar10_comes_as_records_in_the_order_of_its_batches(mirrors: list[Mirror], tmp_path: Path) -> None:
    dataset, batches = cifar(mirrors)
    written = run(dataset, tmp_path)
    assert (written.train_images, written.val_images) == (20, 4)
    train = read_part(tmp_path / "out" / "train")
    assert len(train) == dataset.shards
    content = b"".join(batches[name] for name in convert.CIFAR_TRAIN)
    for at, (record_id, label, mode, pixels) in enumerate(chain(*train)):
        record = content[at * 3073 :][:3073]
        assert (record_id, label, mode) == (at, record[0], "RGB")
        assert (pixels[::3], pixels[1::3], pixels[2::3]) == (record[1:1025], record[1025:2049], record[2049:])
    assert not (tmp_path / "evil").exists()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["train", "val"]


def test_mxnet_reads_what_was_fetched(mirrors: list[Mirror], tmp_path: Path) -> None:
    dataset, batches = cifar(mirrors)
    run(dataset, tmp_path, shards=1)
    lines = run_mxnet(
        """
        records = mx.io.ImageRecordIter(path_imgrec=sys.argv[1], data_shape=(3, 32, 32), batch_size=1,
                                        preprocess_threads=1, prefetch_buffer=1)
        for batch in records:
            print(int(batch.label[0].asscalar()), batch.data[0][0].asnumpy().astype("uint8").tobytes().hex())
        """,
        tmp_path / "out" / "val" / "part-00000.rec",
    )
    content = batches[convert.CIFAR_VAL]
    # MXNet's order is CIFAR-10's own: the red plane, the green one, the blue one.
    assert lines == [f"{content[at]} {content[at + 1 : at + 3073].hex()}" for at in range(0, 4 * 3073, 3073)]


def test_the_same_fetch_writes_the_same_bytes_and_asks_no_mirror_again(mirrors: list[Mirror], tmp_path: Path) -> None:
    dataset, _ = mnist(mirrors)
    first = {path: path.read_bytes() for path, _ in run(dataset, tmp_path).files}
    asked = len(mirrors[0].asked)
    (tmp_path / "out" / ".cluster-fetch" / "left").mkdir(parents=True)  # by a run that was killed
    assert {path: path.read_bytes() for path, _ in run(dataset, tmp_path).files} == first
    assert len(mirrors[0].asked) == asked == 4
    assert not (tmp_path / "out" / ".cluster-fetch").exists()


def test_what_was_published_damaged_is_refused_in_plain_words(mirrors: list[Mirror], tmp_path: Path) -> None:
    missing, _ = cifar(mirrors, without="data_batch_3.bin")
    with pytest.raises(ClusterError, match=r"there is no data_batch_3\.bin in it"):
        run(missing, tmp_path)
    dataset, files = mnist(mirrors)
    for content, said in (
        (b"no gzip", "not a whole gzip file"),
        (gzip.compress(b"x" * 99)[:-9], "not a whole gzip file"),
        (gzip.compress(b"x" * 99), "not an idx file"),
        (gzip.compress(convert.encode_idx((3,), b"abc")), "13 images, and .* 3 labels"),
        (gzip.compress(files[TRAIN_IMAGES]), "an array of 3 dimensions, not 1"),
    ):
        bad = source(mirrors, f"{TRAIN_LABELS}.gz", content)
        with pytest.raises(ClusterError, match=said):
            run(replace(dataset, sources=(dataset.sources[0], bad, *dataset.sources[2:])), tmp_path)
    assert not list((tmp_path / "out").iterdir())


def test_a_folder_that_cannot_be_written_to_is_named(mirrors: list[Mirror], tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"a file")
    with pytest.raises(ClusterError, match="out cannot be written to: File exists"):
        run(mnist(mirrors)[0], tmp_path)
    (tmp_path / "cache").write_bytes(b"a file")
    with pytest.raises(ClusterError, match=r"mnist cannot be written: .*cache"), workplace(tmp_path / "new") as work:
        fetch(mnist(mirrors)[0], work, shards=1, cache=tmp_path / "cache", report=silent, advance=lambda _: None)


def test_two_at_once_do_not_write_to_one_folder(tmp_path: Path) -> None:
    with workplace(tmp_path), pytest.raises(ClusterError, match="another cluster data fetch"), workplace(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_the_table_is_whole() -> None:
    for name, dataset in DATASETS.items():
        assert name == dataset.name
        for file in dataset.sources:
            assert len(file.mirrors) > 1
            assert all(url.startswith("https://") for url in file.urls)
            assert len(bytes.fromhex(file.sha256)) == 32
