"""A page that would load anything from elsewhere is a mistake: no network is needed to read it."""

import logging
import re

LOADED = re.compile(
    r"<(?:script|img|iframe|link(?=[^>]*(?:stylesheet|preconnect|icon)))[^>]*"
    r"(?:src|href)=[\"']?(?:https?:)?//[^>]*>"
)
log = logging.getLogger("mkdocs.hooks.offline")


def on_post_page(output, page, config):
    """Warns, so that a strict build fails."""
    for tag in LOADED.findall(output):
        log.warning("%s loads something from elsewhere: %s", page.file.src_uri, tag)
    return output
