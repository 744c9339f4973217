"""All that the author of a method needs, under one name (docs/adding_a_method.md)."""

from rag_middle.methods.authoring import *  # noqa: F403 - the names are listed there
