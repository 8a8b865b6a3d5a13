"""Sphinx's settings. The source folder is the repository: links to any file work in the site as on GitHub."""

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
# Not searched for pages: they hold no page of the site and many files.
exclude_patterns = [".*", "build", "dist", "tests", "bench"]

# The anchors of headings are GitHub's.
myst_heading_anchors = 4
# A block of code is shown as it is written: the commands have comments and output beside them.
highlight_language = "none"

html_theme = "furo"
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
html_use_index = False


def write_entry_page(app: Sphinx, exception: Exception | None) -> None:
    """build/docs/index.html leads to the first page, which is in docs/ as in the repository."""
    if exception is None and app.builder.format == "html":
        target = html.escape(app.builder.get_target_uri(root_doc))
        page = f'<!doctype html><meta http-equiv="refresh" content="0; url={target}"><a href="{target}">{project}</a>\n'
        (Path(app.outdir) / "index.html").write_text(page)


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("build-finished", write_entry_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
