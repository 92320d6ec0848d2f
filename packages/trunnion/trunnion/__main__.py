"""`python -m trunnion`: the command line."""

from __future__ import annotations

from trunnion.cli.main import main

if __name__ == "__main__":
    main()
