"""A page in headless Chromium."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr")

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")


def load(page: Path, *options: str) -> tuple[list[str], str]:
    """Opens a page. Returns what it says on the console, where its policy reports each request, and stdout."""
    command = [str(CHROMIUM), *OPTIONS, f"--user-data-dir={page.parent / 'profile'}", *options]
    done = subprocess.run([*command, page.resolve().as_uri()], capture_output=True, text=True, check=True)
    return re.findall(r"CONSOLE.*", done.stderr), done.stdout
