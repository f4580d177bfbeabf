"""Stands in for two parts of Gradio's page that read what models write: its sanitizer of HTML, and Mermaid.

Gradio lets a text load any picture of this site with the visitor's cookie, and runs Mermaid in the page with settings
that a diagram can change. It has no option for either.
"""

import re
from hashlib import sha256
from pathlib import Path

from agent.web.gradio_compat.video_streams import WHOLE

_HERE = Path(__file__).parent
_SANITIZER = re.compile(rb"export\{\w+ as n,\w+ as t\};?\s*\Z")
"""`n` returns a fragment without dangerous HTML, and `t` its text."""
_MERMAID = re.compile(rb"export\{\w+ as default\};?\s*\Z")


def content_stand_ins(folder: Path) -> dict[str, bytes]:
    """Return the stand-ins by the names of Gradio's files in `folder`, without those whose files export other names."""
    out = dict[str, bytes]()
    for path in folder.glob("browser-*.js"):
        if _SANITIZER.search(path.read_bytes()[-200:]) and b"allowElements" in path.read_bytes():
            out[path.name] = _stand_in("sanitizer", name=path.name)
    for path in folder.glob("mermaid.core-*.js"):
        if _MERMAID.search(path.read_bytes()[-200:]):
            frame = _stand_in("diagram_frame", name=path.name)
            name = f"diagrams-{sha256(frame).hexdigest()[:16]}.js"
            out |= {name: frame, path.name: _stand_in("diagrams", frame=name)}
    return out


def _stand_in(script: str, **names: str) -> bytes:
    text = (_HERE / f"{script}.js").read_text(encoding="utf-8")
    for field, name in names.items():
        text = text.replace(f"{{{field}}}", name)
    return text.replace("?whole", f"?{WHOLE}").encode()
