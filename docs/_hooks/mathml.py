"""Equations: LaTeX between dollars, as GitHub reads it too, is turned into MathML."""

import html
import re

from latex2mathml.converter import convert

EQUATION = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(content, page, config, files):
    """Converts what pymdownx.arithmatex has found."""

    def mathml(match):
        tag, latex = match.groups()
        math = convert(html.unescape(latex), display="inline" if tag == "span" else "block")
        return f'<{tag} class="equation">{math}</{tag}>'

    return EQUATION.sub(mathml, content)
