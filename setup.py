"""The description on PyPI: README.md, with addresses instead of paths, which lead nowhere there."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

PROJECT = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["project"]
FILES = f"{PROJECT['urls']['Repository']}/blob/main/"

setup(
    long_description=re.sub(
        r"\]\((?!https?:|#)", f"]({FILES}", Path("README.md").read_text("utf-8")
    ),
    long_description_content_type="text/markdown",
)
