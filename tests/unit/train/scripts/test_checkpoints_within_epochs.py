"""Checkpoints within an epoch: they use two names in turn, one of which is complete at any time."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from killed_savers import in_child, killed_while
from training_scripts import KINDS, content, opened, save

KILLED_AT = 17  # after every 17th line


def save_batch(checkpoints: ModuleType, place: Any, sequence: Any, epoch: int, batch: int) -> str:
    def writer(kind: str) -> Callable[[str], None]:
        return lambda path: (Path(path).write_bytes(content(kind, epoch, f"batch {batch}")), None)[1]

    writers = {kind: writer(kind) for kind in KINDS}
    name: str = checkpoints.save(place, epoch, writers, symbol="{}", facts={}, **sequence.next(batch))
    return name


def newest(checkpoints: ModuleType, prefix: str) -> tuple[int, int] | None:
    """The epoch and batch of the newest checkpoint. Checks that every byte belongs to it."""
    found = checkpoints.find_newest(opened(checkpoints, prefix, to_write=False))
    if found is None:
        return None
    run = f"batch {found.batch}" if found.batch else "first"
    for kind in KINDS:
        assert Path(found.paths[kind]).read_bytes() == content(kind, found.epoch, run)
    return found.epoch, found.batch


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return str(tmp_path / "net")


def test_the_newest_one_is_found(checkpoints: ModuleType, prefix: str) -> None:
    place, sequence = opened(checkpoints, prefix), checkpoints.Sequence(None)
    names = []
    for batch in (3, 6, 9):
        names.append(Path(save_batch(checkpoints, place, sequence, 0, batch)).name)
        assert newest(checkpoints, prefix) == (0, batch)
    assert names == ["net-batch-0.params", "net-batch-1.params", "net-batch-0.params"]
    save(checkpoints, place, 1)
    assert newest(checkpoints, prefix) == (1, 0)
    save_batch(checkpoints, place, sequence, 1, 3)
    assert newest(checkpoints, prefix) == (1, 3)


def test_a_resumed_training_keeps_the_one_that_it_began_with(checkpoints: ModuleType, prefix: str) -> None:
    place, sequence = opened(checkpoints, prefix), checkpoints.Sequence(None)
    for batch in (3, 6):
        save_batch(checkpoints, place, sequence, 0, batch)
    resumed = checkpoints.Sequence(checkpoints.find_newest(place))
    assert Path(save_batch(checkpoints, place, resumed, 0, 9)).name == "net-batch-0.params"  # batch 6 is in net-batch-1


def test_a_node_whose_clock_is_behind(checkpoints: ModuleType, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = opened(checkpoints, prefix)
    save_batch(checkpoints, place, checkpoints.Sequence(None), 0, 3)
    an_hour_ago = time.time() - 3600
    monkeypatch.setattr(checkpoints.time, "time", lambda: an_hour_ago)
    sequence = checkpoints.Sequence(checkpoints.find_newest(place))
    for batch in (6, 9):
        save_batch(checkpoints, place, sequence, 0, batch)
        assert newest(checkpoints, prefix) == (0, batch)


@pytest.mark.parametrize("kind", ["params", "states", "json"])
@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:40] + b"?" + data[41:], lambda _: b""])
def test_a_damaged_one_does_not_count(
    checkpoints: ModuleType, prefix: str, kind: str, damage: Callable[[bytes], bytes]
) -> None:
    place, sequence = opened(checkpoints, prefix), checkpoints.Sequence(None)
    for batch in (3, 6):
        save_batch(checkpoints, place, sequence, 0, batch)
    path = Path(f"{prefix}-batch-1.{kind}")
    path.write_bytes(damage(path.read_bytes()))
    assert newest(checkpoints, prefix) == (0, 3)


@pytest.mark.parametrize("batch", ["3", -1, 1.5, True, None])
def test_a_manifest_with_an_impossible_batch(checkpoints: ModuleType, prefix: str, batch: object) -> None:
    save_batch(checkpoints, opened(checkpoints, prefix), checkpoints.Sequence(None), 0, 3)
    path = Path(f"{prefix}-batch-0.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"batch": batch}))
    assert newest(checkpoints, prefix) is None


def test_they_are_not_pruned_and_do_not_count(checkpoints: ModuleType, prefix: str) -> None:
    place, sequence = opened(checkpoints, prefix), checkpoints.Sequence(None)
    save(checkpoints, place, 1)
    save(checkpoints, place, 2)
    for batch in (3, 6):
        save_batch(checkpoints, place, sequence, 2, batch)
    assert checkpoints.prune(place, 1) == [1]
    assert newest(checkpoints, prefix) == (2, 6)
    assert checkpoints.find_epoch(place, 2).batch == 0


def test_killed_at_any_line(checkpoints: ModuleType, tmp_path: Path) -> None:
    """The checkpoint of batch 6 is the newest complete one until that of batch 9 is complete."""
    lines, seen = 0, set()
    killed = True
    while killed:
        name = str(tmp_path / f"at-{lines}" / "net")
        place, sequence = opened(checkpoints, name), checkpoints.Sequence(None)
        for batch in (3, 6):
            save_batch(checkpoints, place, sequence, 0, batch)

        def work(place: Any = place, sequence: Any = sequence) -> None:
            save_batch(checkpoints, place, sequence, 0, 9)

        killed = killed_while(work, lines)
        found = in_child(lambda name=name: newest(checkpoints, name))
        assert found in ([0, 6], [0, 9]), lines
        seen.add(tuple(found))
        lines += KILLED_AT
    assert seen == {(0, 6), (0, 9)}


def test_a_later_attempt_of_a_job_with_load_epoch(checkpoints: ModuleType, prefix: str) -> None:
    place = opened(checkpoints, prefix)
    options = SimpleNamespace(only_job=None, model_prefix=prefix, resume=True, load_epoch=4)
    with pytest.raises(checkpoints.ScriptError, match="no saved model"):
        checkpoints.find_wanted(options, advice="")
    Path(f"{prefix}-0004.params").write_bytes(b"weights")  # written by another program
    assert checkpoints.find_wanted(options, advice="").epoch == 4
    save_batch(checkpoints, place, checkpoints.Sequence(None), 5, 3)
    assert checkpoints.find_wanted(options, advice="").batch == 3
