"""The documentation site: ``make docs`` builds it into docs/_build/html, with warnings as errors."""

import importlib.metadata
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]  # `research` is not installed

from reference_pages import write  # noqa: E402

project = "fedres"
version = release = importlib.metadata.version("fedres")
project_copyright = "The fedres maintainers"
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # JSON with "...", languages that Pygments does not know
html_theme = "furo"
html_title = "fedres"
html_extra_path = ["llms.txt"]
html_copy_source = False


TITLES = {"results/fair": "FedRes and peers, equipped alike"}  # written without one


def drop_links_out(app, name, source):
    """Keep the text alone of links to files that are not part of the site, such as source files."""
    if name in TITLES and not source[0].startswith("# "):
        source[0] = f"# {TITLES[name]}\n\n{source[0]}"
    folder = Path(app.env.doc2path(name)).parent

    def keep_or_drop(found):
        target = (folder / found[2].partition("#")[0]).resolve()
        inside = target.is_relative_to(HERE) and target.suffix in (".md", ".png", ".svg")
        return found[0] if inside else found[1]

    source[0] = re.sub(r"(?<!!)\[([^\]]+)\]\((?!https?://|#)([^)]+)\)", keep_or_drop, source[0])


def add_navigation(app, name, source):
    """Make the sidebar from the list of all pages in index.md: one caption for each point, its links in their order."""
    if name == "index":
        for caption, links in re.findall(r"^- \*\*(.*?)\*\*:(.*?)(?=^- |^$)", source[0], re.DOTALL | re.MULTILINE):
            pages = "\n".join(re.findall(r"\]\((.*?)\.md\)", links))
            source[0] += f"\n```{{toctree}}\n:caption: {caption}\n:hidden:\n{pages}\n```\n"


def setup(app):
    app.connect("builder-inited", lambda app: write())
    app.connect("source-read", drop_links_out)
    app.connect("source-read", add_navigation)
