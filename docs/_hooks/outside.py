"""What the site shows from outside docs/: files of the root, the notebooks, and links.

On GitHub every link is a path, and works. On the site a path to a page is a link to that page, and
a path to anything else of the repository its name, or a link once the addresses in pyproject.toml
are real ones.
"""

import os
import re
import tomllib
from pathlib import Path

from mkdocs.structure.files import File
from nbconvert import MarkdownExporter

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NOTEBOOKS = {
    path: f"notebooks/{path.stem}.md" for path in sorted(ROOT.glob("examples/notebooks/*.ipynb"))
}
SHOWN = {
    ROOT / "README.md": "index.md",
    ROOT / "CONTRIBUTING.md": "contributing.md",
    ROOT / "CHANGELOG.md": "changelog.md",
    ROOT / "examples/notebooks/README.md": "notebooks/index.md",
    **NOTEBOOKS,
}
SOURCES = {page: path for path, page in SHOWN.items()}
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_config(config):
    """Takes the addresses from pyproject.toml, unless they are still placeholders."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]
    if "OWNER" not in urls["Repository"]:
        config.repo_url, config.site_url = urls["Repository"], urls["Documentation"]
    return config


def on_files(files, config):
    """Adds the pages whose text lies elsewhere."""
    for path, page in SHOWN.items():
        if path not in NOTEBOOKS:
            files.append(File.generated(config, page, abs_src_path=str(path)))
            continue
        # Pictures become files beside the page.
        names = {"unique_key": path.stem, "output_files_dir": f"{path.stem}_files"}
        text, resources = MarkdownExporter().from_filename(str(path), resources=names)
        files.append(File.generated(config, page, content=text))
        for name, picture in resources["outputs"].items():
            files.append(File.generated(config, f"notebooks/{name}", content=picture))
    return files


def on_page_markdown(markdown, page, config, files):
    """Turns links by path into links between pages."""
    source = SOURCES.get(page.file.src_uri, DOCS / page.file.src_uri)

    def link(match):
        text, target, anchor = match.groups()
        path = Path(os.path.normpath(source.parent / target))
        if not path.exists():
            return match[0]  # another site's, or a mistake, which MkDocs reports
        if path in SHOWN or path.is_relative_to(DOCS):
            to = SHOWN.get(path) or path.relative_to(DOCS).as_posix()
            return f"[{text}]({os.path.relpath(to, Path(page.file.src_uri).parent)}{anchor or ''})"
        name = path.relative_to(ROOT).as_posix()
        if config.repo_url:
            return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{name}{anchor or ''})"
        return f"`{name}`" if text.strip("`") == name else f"{text} (`{name}`)"

    return LINK.sub(link, markdown)
