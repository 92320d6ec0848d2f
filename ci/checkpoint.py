"""Print where the GGUF file of an installed distribution lies, without importing the distribution."""

from __future__ import annotations

import sys
from importlib.metadata import files


def main(name: str) -> int:
    found = [path for path in files(name) or () if path.suffix == ".gguf"]
    if len(found) != 1:
        print(f"{name} carries {len(found)} GGUF files, expected one", file=sys.stderr)
        return 1
    print(found[0].locate())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
