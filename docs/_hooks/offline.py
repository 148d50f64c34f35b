"""The site works from disk and without a network; a page that loads from elsewhere is an error."""

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


def on_post_template(output, template_name, config):
    """The 404 page finds its styles and scripts from disk too, and leads somewhere."""
    if template_name != "404.html":
        return output
    home = "." if not config.site_url else config.site_url
    if not config.site_url:
        output = re.sub(r'((?:href|src)=")/', r"\1", output).replace('"base": "/"', '"base": "."')
    found = output.replace(
        "<h1>404 - Not found</h1>",
        "<h1>Page not found</h1>\n"
        f'<p>Search above, or start at <a href="{home}/index.html">the home page</a>.</p>',
    )
    if found == output:
        log.warning("404.html has another heading than expected.")
    return found
