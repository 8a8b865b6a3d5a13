"""The words of a command that name data in S3."""

import pytest

from node.staging.s3 import Entry
from node.staging.words import find_urls, is_below, make_value, replace_urls


@pytest.mark.parametrize(
    ("word", "urls", "replaced"),
    [
        ("s3://bkt/d/train/", ["s3://bkt/d/train/"], "/n/bkt/d/train/"),
        ("--data=s3://bkt/d", ["s3://bkt/d"], "--data=/n/bkt/d"),
        ("s3://bkt/a.rec;s3://bkt/b.rec#c", ["s3://bkt/a.rec", "s3://bkt/b.rec"], "/n/bkt/a.rec;/n/bkt/b.rec#c"),
        ("python t.py 's3://bkt/x' && ls", ["s3://bkt/x"], "python t.py '/n/bkt/x' && ls"),
        ("s3://bkt/s-[02].rec", ["s3://bkt/s-"], "/n/bkt/s-[02].rec"),
        ("s3://bkt", ["s3://bkt"], "/n/bkt"),
        ("/local/path --lr 0.1", [], "/local/path --lr 0.1"),
    ],
)
def test_words_with_paths(word: str, urls: list[str], replaced: str) -> None:
    found = find_urls([word, word])
    assert found == urls
    assert replace_urls([word], {url: "/n/" + url[5:] for url in found}) == (replaced,)
    assert replace_urls([word], {}) == (word,)


@pytest.mark.parametrize("url", ["s3://b/d", "s3://b/d/", "s3://b/d/x"])
def test_what_is_below_a_folder(url: str) -> None:
    assert is_below(url, "s3://b/d/")
    assert is_below(url, "s3://b/d")
    assert not is_below(url, "s3://b/d-2")
    assert not is_below(url.replace("/d", "/d-2"), "s3://b/d")


@pytest.mark.parametrize(
    ("url", "keys", "value"),
    [
        ("s3://bkt/t/", ["t/s-1.rec", "t/s-2.rec"], "/n/bkt/t/s-1.rec;/n/bkt/t/s-2.rec"),
        ("s3://bkt/t/", ["t/index/s-1.idx", "t/s-1.rec", "t/s-2.rec"], "/n/bkt/t/s-1.rec;/n/bkt/t/s-2.rec"),
        ("s3://bkt/t/", ["t/train.rec", "t/val.rec"], "/n/bkt/t/"),
        ("s3://bkt/t/", ["t/s-1.idx", "t/s-1.rec"], "/n/bkt/t/"),
        ("s3://bkt/t/", ["t/a/s-1.rec", "t/a/s-2.rec"], "/n/bkt/t/"),
        ("s3://bkt/t/s-", ["t/s-1.rec", "t/s-2.rec"], "/n/bkt/t/s-"),
        ("s3://bkt/t/s-1.rec", ["t/s-1.rec"], "/n/bkt/t/s-1.rec"),
    ],
)
def test_shards_become_a_sorted_list(url: str, keys: list[str], value: str) -> None:
    assert make_value("/n", url, [Entry(f"s3://bkt/{key}", 1, "") for key in keys]) == value
