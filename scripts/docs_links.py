"""Hook of mkdocs: links of the pages to files outside docs/ become the path of the file.

The pages are read in the repository too, where such links work. On the site there is nothing to
link to. A path that does not exist is left as it is, so that a strict build fails.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\[([^\]]*)\]\((\.\.?/[^)#\s]*)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page's text with links that leave docs/ replaced by text and path."""
    folder = (ROOT / "docs" / page.file.src_uri).parent

    def replaced(match: re.Match[str]) -> str:
        text, target = match[1], Path(os.path.normpath(folder / match[2]))
        if target.is_relative_to(ROOT / "docs") or not target.exists():
            return match[0]
        path = target.relative_to(ROOT).as_posix()
        return f"`{path}`" if text.strip("`") in (path, target.name) else f"{text} (`{path}`)"

    return LINK.sub(replaced, markdown)
