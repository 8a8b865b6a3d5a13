"""What is known of a job's data and its owner before it starts; surveyor.py asks AWS for it."""

from collections import Counter
from dataclasses import dataclass

_VALIDATION = ("val/", "validation/", "test/")
_TRAINING = "train/"


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """What S3 refuses, to whoever has this machine's credentials. what: "listed" or "read". code, words: S3's."""

    what: str
    where: str
    code: str
    words: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """What lies in [data] url. records: .rec files, without those of folders for validation; in_train: those of train/.

    complete: all that is there was counted.
    folder: where training finds its records below the URL ("train/", or ""). sizes: of the .rec files that stand there
    themselves, in S3's order, in bytes. others: what else stands there and is not empty.
    region: the bucket's, None when it is not known. at_aws: it was asked at AWS's own endpoint.
    refused: what S3 refuses; not_records: the URL of a .rec file that is no RecordIO file; cut_short: the key below the
    URL of one that is not whole, to judge by its size.
    """

    objects: int
    records: int
    in_train: int = 0
    complete: bool = True
    bucket_exists: bool = True
    folder: str = ""
    sizes: tuple[int, ...] = ()
    others: tuple[str, ...] = ()
    region: str | None = None
    at_aws: bool = True
    refused: Refusal | None = None
    not_records: str | None = None
    cut_short: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """data: None when it is not known, as where this machine may not list it. owner: an ARN, None when not known.

    region: the job's.
    """

    data: Data | None = None
    owner: str | None = None
    region: str | None = None


def count(items: list[tuple[str, int]], *, complete: bool) -> Data:
    """What these are: names below the URL with sizes in bytes, in S3's order. Pure.

    MXNet reads what stands in a folder itself and is not empty, whatever it is called, and nothing of its folders.
    """
    there = [(key, size_bytes) for key, size_bytes in items if size_bytes]
    records = [key for key, _ in there if key.endswith(".rec") and not key.startswith(_VALIDATION)]
    in_folders = Counter(key[: key.rfind("/") + 1] for key in records)
    # What the project's scripts read, else the folder that has the most.
    chosen = (folder for folder in (_TRAINING, "") if in_folders[folder])
    folder = next(chosen, max(in_folders, key=lambda name: in_folders[name], default=""))
    inside = [(key, size) for key, size in there if key.startswith(folder) and "/" not in key[len(folder) :]]
    return Data(
        objects=sum(bool(key) and not key.endswith("/") for key, _ in items),
        records=len(records),
        in_train=sum(key.startswith(_TRAINING) for key in records),
        complete=complete,
        folder=folder,
        # Its records are padded up to a multiple of four bytes.
        cut_short=next((key for key, size in inside if key.endswith(".rec") and size % 4), None),
        sizes=tuple(size for key, size in inside if key.endswith(".rec")),
        others=tuple(key[len(folder) :] for key, _ in inside if not key.endswith(".rec")) if in_folders else (),
    )
