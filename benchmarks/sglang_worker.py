"""Answers the requests of benchmarks/sglang.py with SGLang's own cache, in a process and environment of its own.

DIR/venv/bin/python benchmarks/sglang_worker.py DIR/wheel

One JSON object a line comes in, one goes out. {"do": "open", "tokens", "page", "pools"} builds the tree in both cores;
{"do": <operation>, "core", "number"} measures one round of it: {"seconds", "answers"}; see sglang_peer.Subject.
{"do": "trace", "requests", "page"} takes a trace, {"do": "replay", "core", "capacity", "policy"} replays it.
"""

import gc
import json
import os
import sys
import warnings
from pathlib import Path

import sglang_standins

CORES = ("rust", "python")


def main() -> None:
    talk = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the packages print is no answer
    warnings.filterwarnings("ignore")
    sys.dont_write_bytecode = True
    sglang_standins.install(Path(sys.argv[1]))
    import sglang_peer
    from workload import Tree

    def answer(**values) -> None:
        print(json.dumps(values), file=talk, flush=True)

    subjects, tree, replay = {}, None, None
    answer(ready=True)
    for line in sys.stdin:
        asked = json.loads(line)
        do = asked.pop("do")
        if do == "open":
            if tree is None or tree.tokens != asked["tokens"]:
                tree = Tree(asked["tokens"])
            subjects.clear()
            gc.unfreeze()
            for core in CORES:
                subjects[core] = sglang_peer.Subject(core, tree, asked["pools"], asked["page"])
            gc.collect()
            gc.freeze()  # what stands needs no more looking at, so that the collection before each round is short
            answer(ready=True)
        elif do == "start_steps":
            for subject in subjects.values():
                subject.start_steps()
            answer(ready=True)
        elif do == "trace":
            subjects.clear()
            replay = sglang_peer.Replay(asked["requests"], asked["page"])
            answer(ready=True)
        elif do == "replay" and replay:
            seconds, answers = replay.run(**asked)
            answer(seconds=seconds, answers=answers)
        else:
            seconds, answers = getattr(subjects[asked["core"]], do)(asked["number"])
            answer(seconds=seconds, answers=answers)


if __name__ == "__main__":
    main()
