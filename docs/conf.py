"""Sphinx's settings. The source folder is the repository, so links to any file work in the site as on GitHub."""

import html
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

REPOSITORY = Path(__file__).parent.parent
METADATA = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]

project = "cluster"
author = f"The authors of {METADATA['name']}"
release = METADATA["version"]
html_title = f"{project} {release}"

extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = ["docs/**.md", "examples/**README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
# Folders with many files and no pages, which Sphinx does not search.
exclude_patterns = [".*", "build", "dist", "tests", "bench"]

# Headings have the same anchors as on GitHub.
myst_heading_anchors = 4
# Code blocks are not highlighted, because commands are mixed with comments and output.
highlight_language = "none"

html_theme = "furo"
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
html_use_index = False


def write_entry_page(app: Sphinx, exception: Exception | None) -> None:
    """Writes build/docs/index.html, which redirects to the first page, in docs/ as in the repository."""
    if exception is None and app.builder.format == "html":
        target = html.escape(app.builder.get_target_uri(root_doc))
        page = f'<!doctype html><meta http-equiv="refresh" content="0; url={target}"><a href="{target}">{project}</a>\n'
        (Path(app.outdir) / "index.html").write_text(page)


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the handler. Sphinx calls this function."""
    app.connect("build-finished", write_entry_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
