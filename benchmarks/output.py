"""What each benchmark prints and writes alike: wide tables where nobody watches, and where its figures are from."""

import os
import platform
from typing import Any

import jax
from rich.console import Console
from rich.table import Table


def show(*tables: Table, width: int = 160) -> None:
    """Prints tables, of so many characters a line where they do not go to a terminal."""
    console = Console()
    if not console.is_terminal:
        console.width = width
    for table in tables:
        console.print(table)


def environment() -> dict[str, Any]:
    """Where figures were measured, for a file of them."""
    return {
        "python": platform.python_version(),
        "jax": jax.__version__,
        "device": jax.devices()[0].platform,
        "cpus": os.cpu_count(),
    }
