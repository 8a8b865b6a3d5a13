"""Sphinx's settings. The source folder is the repository, so links to any file work in the site as on GitHub."""

import html
import re
import tomllib
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

REPOSITORY = Path(__file__).parent.parent
METADATA = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]

project = "cluster"
author = f"The authors of {METADATA['name']}"
release = METADATA["version"]
html_title = f"{project} {release}"

extensions = ["myst_parser", "sphinx_copybutton", "sphinx_design"]
myst_enable_extensions = ["colon_fence"]
root_doc = "docs/index"
include_patterns = ["docs/**.md", "examples/**README.md", "CONTRIBUTING.md", "CHANGELOG.md", "sandbox/README.md"]
# Folders with many files and no pages, which Sphinx does not search.
exclude_patterns = [".*", "build", "dist", "tests", "bench"]

# Headings have the same anchors as on GitHub.
myst_heading_anchors = 4
# Blocks are indented, as GitHub shows them: they name no language, so that `highlight` guesses it.
highlight_language = "none"
LANGUAGES = {  # by what a block contains; the first one that matches
    "python": r"^(import|from|def|class|for|with|parser =|net =|@)\b.*$",
    "toml": r"^(\[\[?[\w.-]+\]\]?|[\w.]+ *= *[\[{\"'\dtf])",
    "json": r"^[\[{](\"|$)",
    "bash": r"^ *(#|(cluster|make|uv|pipx?|export|mkdir|cd|aws|ssh|git|python3?|echo|sudo|eval|docker|podman)\b)",
}

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


TABS = re.compile(r"^<!-- tabs -->\n(.*?)^<!-- end -->\n", re.MULTILINE | re.DOTALL)
CARDS = re.compile(r"^<!-- cards -->\n(.*?)^<!-- end -->\n", re.MULTILINE | re.DOTALL)


def write_directives(_app: Sphinx, _page: str, source: list[str]) -> None:
    """Makes tabs and cards of paragraphs and lists between comments, which GitHub shows as they are."""
    text = TABS.sub(lambda found: render_tabs(found[1]), source[0])
    source[0] = CARDS.sub(lambda found: render_cards(found[1]), text)


def render_tabs(text: str) -> str:
    """Tabs of paragraphs, each after a line with its title in bold."""
    _, *parts = re.split(r"^\*\*(.+)\*\*\n", text, flags=re.MULTILINE)
    tabs = zip(parts[::2], parts[1::2], strict=True)
    return "::::{tab-set}\n" + "".join(f":::{{tab-item}} {name}\n{body}:::\n" for name, body in tabs) + "::::\n"


def render_cards(text: str) -> str:
    """Cards of a list, whose items are a title, a colon and a text."""
    items = re.findall(r"^- (.+?\)): (.+)$", text, re.MULTILINE)
    cards = "".join(f":::{{grid-item-card}} {title}\n{body}\n:::\n" for title, body in items)
    return f"::::{{grid}} 1 2 2 2\n:gutter: 3\n\n{cards}::::\n"


def guess_language(block: str) -> str:
    """The language of a code block that does not name one."""
    return next((name for name, sign in LANGUAGES.items() if re.search(sign, block, re.MULTILINE)), "none")


def highlight(_app: Sphinx, document: nodes.document) -> None:
    """Sets the language of the code blocks that do not name one."""
    for block in document.findall(nodes.literal_block):
        if block.get("language", "none") in {"none", "default"}:
            block["language"], block["force"] = guess_language(block.astext()), True


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the handlers. Sphinx calls this function."""
    app.connect("source-read", write_directives)
    app.connect("doctree-read", highlight)
    app.connect("build-finished", write_entry_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
