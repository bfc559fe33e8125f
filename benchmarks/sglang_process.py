"""The process in which SGLang's cache runs, in its own environment: benchmarks/sglang_worker.py."""

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORKER = Path(__file__).with_name("sglang_worker.py")


class Peer:
    """Asks the worker, one message at a time. While it waits for one it takes no processor time."""

    def __init__(self, folder: Path) -> None:
        python, wheel = folder / "venv" / "bin" / "python", folder / "wheel"
        for needed in (python, wheel / "sglang"):
            if not needed.exists():
                raise SystemExit(f"there is no {needed}: --install-peer {folder} makes it")
        # What it says beside its answers: shown if it fails.
        self.said = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [python.absolute(), WORKER, wheel.absolute()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.said,
            text=True,
        )
        self._answer()

    def ask(self, do: str, **values) -> dict[str, Any]:
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):  # `_answer` says why
            self.process.stdin.write(json.dumps({"do": do, **values}) + "\n")
            self.process.stdin.flush()
        return self._answer()

    def measured(self, do: str, **values) -> tuple[float, list[int]]:
        """(seconds, answers)."""
        answer = self.ask(do, **values)
        return answer["seconds"], answer["answers"]

    def round(self, do: str, core: str) -> Callable[[int], tuple[float, list[int]]]:
        """A round of one of the cores, as a function of its number."""
        return lambda number: self.measured(do, core=core, number=number)

    def close(self) -> None:
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._close_files()

    def _close_files(self) -> None:
        for file in (self.process.stdin, self.process.stdout, self.said):
            if file:
                with contextlib.suppress(BrokenPipeError):
                    file.close()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            self.process.wait(timeout=30)
            self.said.seek(0)
            said = self.said.read()[-4000:]
            self._close_files()
            raise RuntimeError(f"the peer's process has ended:\n{said}")
        return json.loads(line)
