"""Components: the kinds of attention state that the tree keeps."""

from urc.components.base import Component
from urc.components.full import Full
from urc.components.mamba import Mamba
from urc.components.swa import SWA

__all__ = ["SWA", "Component", "Full", "Mamba"]
