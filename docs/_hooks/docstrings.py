"""Our docstrings have sections that Griffe does not know; it is told what they are."""

import re
import textwrap

import griffe

TEXTS = re.compile(r"^(Input shape|Output shape|Reference):\n((?: {4}.*\n?|\n)+)", re.MULTILINE)
EXAMPLE = re.compile(r"^Example:\n((?:.+(?:\n|$))+)", re.MULTILINE)
PAGE = re.compile(r"\bdocs/(\w+)\.md")


def _example(match):
    return "Examples:\n" + textwrap.indent(textwrap.dedent(match[1]), "    ")


def _text(match):
    return f"**{match[1]}**\n\n{textwrap.dedent(match[2])}"


class Sections(griffe.Extension):
    """Examples as code, call arguments as a list, the rest as text, and pages as links."""

    def on_instance(self, *, obj, **kwargs):
        """Changes the docstring of one module, class or function."""
        if obj.docstring is None:
            return
        text = EXAMPLE.sub(_example, obj.docstring.value)
        text = re.sub(
            r"^Call arguments:$", "Other Parameters: Call arguments", text, flags=re.MULTILINE
        )
        text = TEXTS.sub(_text, text)
        obj.docstring.value = PAGE.sub(r"[docs/\1.md](../\1.md)", text)
