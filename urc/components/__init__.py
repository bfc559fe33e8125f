"""Components: the kinds of attention state that the tree keeps."""

from urc.components.base import Component
from urc.components.full import Full

__all__ = ["Component", "Full"]
