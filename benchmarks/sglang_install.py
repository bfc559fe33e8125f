"""Makes the folder that benchmarks/sglang.py takes as its peer: DIR/venv and DIR/wheel."""

import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

VERSION = "0.5.23"
TORCH = "torch==2.13.0"
PACKAGES = ("numpy", "msgspec", "packaging", "psutil", "regex", "tqdm")


def install(folder: Path, say: Callable[[str], None]) -> None:
    """Downloads the published wheel, which is unpacked but not installed, and what it imports but cannot do without.

    From whichever package index pip is set up for; the wheel has a compiled part for Python 3.11 on x86-64 Linux.
    """
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise SystemExit("SGLang's wheel is for x86-64 Linux")
    python = sys.executable if sys.version_info[:2] == (3, 11) else shutil.which("python3.11")
    if not python:
        raise SystemExit("SGLang's wheel needs a Python 3.11: there is no python3.11 here")
    folder.mkdir(parents=True, exist_ok=True)
    inside = folder / "venv" / "bin" / "python"
    say("virtual environment")
    subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
    say(f"{TORCH} and {len(PACKAGES)} packages")
    subprocess.run([inside, "-m", "pip", "install", "-q", TORCH, *PACKAGES], check=True)
    say(f"sglang=={VERSION}")
    options = ["-q", "--no-deps", "--only-binary", ":all:", "-d", str(folder)]
    subprocess.run([inside, "-m", "pip", "download", *options, f"sglang=={VERSION}"], check=True)
    shutil.rmtree(folder / "wheel", ignore_errors=True)
    with zipfile.ZipFile(next(folder.glob(f"sglang-{VERSION}-*.whl"))) as archive:
        archive.extractall(folder / "wheel")
