"""The page at ``/``: no other server is asked for anything, and no script runs but its own."""

import base64
from hashlib import sha256
from importlib.resources import files

import jinja2
from fastapi.responses import HTMLResponse

POLICY = (
    "default-src 'none'; img-src data:; connect-src 'self'; style-src '{}'; script-src '{}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def response(*, root_path: str, docs: bool) -> HTMLResponse:
    """The page of a server at ``root_path``; ``docs`` says whether it has ``/docs``."""
    report, page = (  # the report has the style of all pages
        (files(f"rrcm.{room}") / f"{name}.html.jinja").read_text(encoding="utf-8")
        for room, name in (("analysis", "report"), ("serving", "page"))
    )
    template = jinja2.Template(page, autoescape=True, undefined=jinja2.StrictUndefined)
    html = template.render(style=_inside(report, "style"), root=root_path, docs=docs)
    digests = (sha256(_inside(html, tag).encode()).digest() for tag in ("style", "script"))
    hashes = (f"sha256-{base64.b64encode(digest).decode()}" for digest in digests)
    return HTMLResponse(html, headers={"Content-Security-Policy": POLICY.format(*hashes)})


def _inside(html: str, tag: str) -> str:
    return html.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
