"""`python ci/matrix_report FILES --out FOLDER`: matrix.html and matrix.json of what the matrix's tests left."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from matrix_report.cells import STATUSES, ReportError, read_outcomes
from matrix_report.page import write_page
from matrix_report.summary import write_summary


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="matrix_report", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="what `pytest tests/matrix --outcomes FILE` wrote")
    parser.add_argument("--out", type=Path, required=True, help="the folder for matrix.html and matrix.json")
    parser.add_argument("--summary", type=Path, help="a Markdown file whose summary is written anew")
    chosen = parser.parse_args(arguments)
    try:
        matrix = read_outcomes(chosen.files)
        page = write_page(matrix, chosen.out)
        if chosen.summary is not None:
            write_summary(matrix, chosen.summary)
    except ReportError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for hardware in matrix.devices:
        counts = matrix.count(hardware)
        print(f"{hardware}: " + ", ".join(f"{counts[status]} {status}" for status in STATUSES))
    print(f"wrote {page} and {page.with_suffix('.json')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
