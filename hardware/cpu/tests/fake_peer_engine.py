"""A worker of the peers' bench that computes nothing: its path says how it behaves."""

from __future__ import annotations

import subprocess
import sys
import time

from protocol import Generate, Generated, Limits, Prompts, serve


def open_engine(path: str, limits: Limits) -> Generate:
    """`path`: `steady`, `other` (another third token), `no-room` (fails with 8 prompts), `dies` (with 32), `hangs`.

    `dies` and `hangs` leave a process of their own behind, whose number they write to the standard error.
    """
    print("an engine may print what it likes", flush=True)
    if path == "unreadable":
        raise ValueError("cannot read\nthis")

    def generate(prompts: Prompts, new_tokens: int) -> Generated:
        if path == "no-room" and len(prompts) == 8:
            raise MemoryError("no room for 8")
        if path == "dies" and len(prompts) == 32:
            leave_a_process()
            print("the last words", file=sys.stderr, flush=True)
            sys.exit(7)
        if path == "hangs":
            leave_a_process()
            time.sleep(60)
        # A tenth of a second a step; the first takes half a second.
        rows = [[len(prompts) * limits.threads] * new_tokens for _ in prompts]
        if path == "other":
            rows = [[*row[:2], -1, *row[3:]] for row in rows]
        times = [[0.5 + index / 10 for index in range(new_tokens)] for _ in prompts]
        return Generated(tokens=rows, times=times)

    return generate


def leave_a_process() -> None:
    left = subprocess.Popen(("sleep", "60"), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    print(f"left {left.pid}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    serve(open_engine)
