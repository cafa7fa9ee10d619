"""Hooks of MkDocs: which pages there are, and links that leave docs/.

Documents are written to be read in the repository. Here examples/NAME/README.md becomes the page examples/NAME.md, a
notebook examples/notebooks/NAME.ipynb the page examples/notebook_NAME.md, and plots of benchmarks/results are taken
along. Links to other files of the repository become their paths in code type, or links if mkdocs.yml has a repo_url.
"""

import json
import logging
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
RESULTS = "benchmarks/results"
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])+)\]\(([^()\s]+)\)")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_CELL = re.compile(r"<t[dh]\b[^>]*>.*?</t[dh]>", re.DOTALL)
_CODE = re.compile(r"(<code>)([^<]*)(</code>)")
_log = logging.getLogger("mkdocs.hooks.pages")


def examples() -> list[Path]:
    return sorted((ROOT / "examples").glob("*/README.md"))


def notebooks() -> list[Path]:
    return sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def notebook_page(path: Path) -> str:
    """Return a notebook as Markdown: code with what it printed and drew under it."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [_notebook_output(output) for output in cell.get("outputs", [])]
    return "\n\n".join(parts) + "\n"


def _notebook_output(output: dict[str, Any]) -> str:
    if "text" in output:
        return "```text\n" + "".join(output["text"]).rstrip() + "\n```"
    return f"![What the code above draws](data:image/png;base64,{''.join(output['data']['image/png']).strip()})"


def on_config(config: Any) -> Any:
    """List pages that nav doesn't name under Guides, examples under Examples; link pages to their source, if known."""
    named = set(_named(config.nav))
    _list_of(config.nav, "Guides").extend(
        path.name for path in sorted((ROOT / "docs").glob("*.md")) if path.name not in named
    )
    _list_of(config.nav, "Examples").extend(f"examples/{path.parent.name}.md" for path in examples())
    _list_of(config.nav, "Examples").extend(f"examples/notebook_{path.stem}.md" for path in notebooks())
    if config.repo_url:
        config.edit_uri = "edit/main/docs/"
    return config


def _list_of(nav: Any, title: str) -> list[Any]:
    """Return the list of nav under a title, at any depth. A title that isn't there is a KeyError."""
    for entry in nav:
        for name, content in entry.items() if isinstance(entry, dict) else ():
            if name == title:
                found: list[Any] = content
                return found
            if isinstance(content, list):
                try:
                    return _list_of(content, title)
                except KeyError:
                    continue
    raise KeyError(title)


def _named(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [name for entry in (nav.values() if isinstance(nav, dict) else nav) for name in _named(entry)]


def on_files(files: Files, config: Any) -> Files:
    for path in examples():
        page = f"examples/{path.parent.name}.md"
        files.append(_page(config, page, path, path.read_text(encoding="utf-8")))
    for path in notebooks():
        files.append(_page(config, f"examples/notebook_{path.stem}.md", path, notebook_page(path)))
    for path in sorted((ROOT / RESULTS).glob("*/*.svg")):
        name = path.relative_to(ROOT / RESULTS).as_posix()
        files.append(File.generated(config, f"images/results/{name}", abs_src_path=str(path)))
    return files


def _page(config: Any, name: str, source: Path, content: str) -> File:
    """Return a page whose link to edit it leads to the file from which it is made."""
    made = File.generated(config, name, content=content)
    made.edit_uri = f"../{source.relative_to(ROOT).as_posix()}"
    return made


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    here = page.file.src_uri
    written = f"examples/{Path(here).stem}/README.md" if here.startswith("examples/") else f"docs/{here}"
    if here.startswith("examples/notebook_"):
        written = "examples/notebooks/" + here.removeprefix("examples/notebook_")

    def turned(match: re.Match[str]) -> str:
        mark, text, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        path, hash_, anchor = target.partition("#")
        found = posixpath.normpath(posixpath.join(posixpath.dirname(written), path))
        if not (ROOT / found).exists():
            _log.warning("%s links to %s, which is not there", written, target)
            return match[0]
        example = re.fullmatch(r"examples/(\w+)(?:/README\.md)?", found)
        if example and (ROOT / "examples" / example[1] / "README.md").is_file():
            found = f"docs/examples/{example[1]}.md"
        if found.startswith(f"{RESULTS}/") and found.endswith(".svg"):
            found = f"docs/images/results/{found.removeprefix(RESULTS + '/')}"
        if found.startswith("docs/"):
            return f"{mark}[{text}]({posixpath.relpath(found, posixpath.dirname(f'docs/{here}'))}{hash_}{anchor})"
        if config.repo_url:
            return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{found}{hash_}{anchor})"
        if found == f"include/qcore/{text.strip('`')}":
            return f"`{text}`"  # of a table that says where they are
        return f"`{found}`" if text.strip("`") in (found, posixpath.basename(found)) else f"{text} (`{found}`)"

    # Not in code.
    pieces = re.split(f"({_FENCE.pattern})", markdown, flags=_FENCE.flags)
    return "".join(piece if piece.startswith("```") else _LINK.sub(turned, piece) for piece in pieces)


def on_page_content(html: str, **_: Any) -> str:
    """Let names in cells of tables break, but behind an underscore, a dot or a slash only, and options not at all."""

    def code(match: re.Match[str]) -> str:
        text = re.sub(r"(?<=\w)([_./]+)(?=\w)", r"\1<wbr>", match[2])
        return match[1] + re.sub(r"(?<!\S)--?\w[\w-]*", r'<span class="option">\g<0></span>', text) + match[3]

    return _CELL.sub(lambda cell: _CODE.sub(code, cell[0]), html)
