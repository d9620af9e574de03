"""MkDocs hooks: the documents of the repository become pages of the site, and the site needs no other host.

- `ARCHITECTURE.md` and the like are outside of `docs/`: they are added as pages, and links to and from them are
  rewritten. The programs in `examples/` are listed on the page of their folder. A link to any other file becomes text.
- A fence such as ```` ```python shop.py ```` is Python with a title. The word tells the tests how to run the block.
- The build fails if a page loads a font, a script, a style or a picture from another host.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
EXAMPLES = {"examples/README.md": "examples.md", "examples/chat/README.md": "examples/chat.md"}
OUTSIDE = {
    "ARCHITECTURE.md": "internals/architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "internals/contributing.md",
    **EXAMPLES,
}
"""Documents that are not in `docs/`, and where the site has them."""
_PLACES = {place: path for path, place in OUTSIDE.items()}
_LINK = re.compile(r"(?P<bang>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)\)")
_FENCE = re.compile(r"^```(?P<language>\w+) (?P<word>[\w.]+)$", re.MULTILINE)
_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LOADED = re.compile(r"""<(?:script|img|link|iframe)\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//[^"'\s>]+""")
_CANONICAL = re.compile(r"""\brel=["']?canonical""")


def on_files(files: Any, config: Any) -> Any:
    """Add the documents that are outside of `docs/`."""
    from mkdocs.structure.files import File

    for path, place in OUTSIDE.items():
        content = (ROOT / path).read_text()
        if path in EXAMPLES:
            content += "".join(_listing(program) for program in sorted((ROOT / path).parent.glob("*.py")))
        files.append(File.generated(config, place, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite links that leave their tree, and fences with a word for the tests."""
    place = page.file.src_uri
    pieces: list[str] = []
    end = 0
    for block in _CODE.finditer(markdown):
        pieces += [rewritten_links(markdown[end : block.start()], place), _FENCE.sub(_titled, block[0])]
        end = block.end()
    return "".join([*pieces, rewritten_links(markdown[end:], place)])


def on_post_build(config: Any) -> None:
    """Fail if a page would load something from another host."""
    from mkdocs.exceptions import PluginError

    for page in sorted(Path(config["site_dir"]).rglob("*.html")):
        for loaded in _LOADED.finditer(page.read_text()):
            if not _CANONICAL.search(loaded[0]):
                raise PluginError(f"{page.name} loads from another host: {loaded[0]}")


def rewritten_links(text: str, place: str) -> str:
    """The text of the page at `place` in the site, with links that work in the site."""
    source = _PLACES.get(place, f"docs/{place}")

    def link(match: re.Match[str]) -> str:
        target, hash_mark, anchor = match["target"].partition("#")
        if not target or "://" in target or target.startswith("mailto:"):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if path == "README.md":
            path = "docs/index.md"
        if path in OUTSIDE:
            there = OUTSIDE[path]
        elif path.endswith(".py") and (page := f"{posixpath.dirname(path)}/README.md") in EXAMPLES:
            there, hash_mark, anchor = EXAMPLES[page], "#", posixpath.basename(path).replace(".", "")
        elif path.startswith("docs/"):
            there = path.removeprefix("docs/")
        else:
            return match["text"]
        relative = posixpath.relpath(there, posixpath.dirname(place) or ".")
        return f"{match['bang']}[{match['text']}]({relative}{hash_mark}{anchor})"

    return _LINK.sub(link, text)


def _listing(program: Path) -> str:
    return f"\n## {program.name}\n\n```python\n{program.read_text()}```\n"


def _titled(fence: re.Match[str]) -> str:
    title = f' title="{fence["word"]}"' if "." in fence["word"] else ""
    return f"```{fence['language']}{title}"
