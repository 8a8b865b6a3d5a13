"""Photographs to pack, and `cluster data` in this process."""

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from cluster.app import App
from cluster.commands.data import data

Run = Callable[..., str]


def photo(width: int, height: int, number: int = 0) -> Image.Image:
    """Smooths colours with edges and some noise, like a photograph."""
    y, x = np.mgrid[0:height, 0:width]
    wave = np.sin(x / 17 + number) * 60 + np.cos(y / 23) * 60 + 128
    picture = np.stack([wave, wave[::-1], 255 - wave], axis=2) + np.random.default_rng(number).normal(0, 6, (1, 1, 3))
    picture[height // 3 : height // 2, width // 4 : width // 2] = (200, 30, 60)
    return Image.fromarray(picture.clip(0, 255).astype(np.uint8))


@pytest.fixture
def run_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `cluster data WORDS...` in this process, in the test's folder; returns what it prints."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> str:
        data.main(words, obj=App(config_path=Path("cluster.toml")), standalone_mode=False)
        printed = capsys.readouterr()
        return printed.out + " ".join(printed.err.split())

    return run


def pixels(encoded: bytes) -> np.ndarray:
    decoded = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_UNCHANGED)
    assert decoded is not None
    return decoded
