"""Results of the sessions as JUnit files under .nox/reports/<session>/, and their sum.

`python ci/reports.py` prints each failed test with the first line of its message and one line for all sessions,
`N passed, N failed, N skipped`, and exits with 1 on a failure.
With `--record SESSION passed|failed` it adds the result of a session that wrote no report, or no failure, itself.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

MESSAGE_LENGTH = 200
FOLDER = Path(__file__).resolve().parent.parent / ".nox" / "reports"


@dataclass
class Total:
    """Counts of test cases; an error counts as failed, an expected failure as skipped."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: list[str] = field(default_factory=list)
    """Of each the test's name and the first line of its message."""

    def add(self, path: Path) -> None:
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            found = [element for element in case if element.tag in ("failure", "error")]
            if found:
                self.failed += 1
                self.failures.append(f"{case.get('classname', '')}::{case.get('name', '')}{_reason(found[0])}")
            elif case.find("skipped") is not None:
                self.skipped += 1
            else:
                self.passed += 1

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def _reason(failure: ElementTree.Element) -> str:
    """The first line that says something of what a test failed with, cut to MESSAGE_LENGTH; empty if nothing does."""
    lines = [line.strip() for line in (failure.get("message") or failure.text or "").splitlines()]
    first = next(filter(None, lines), "")
    return f": {first[:MESSAGE_LENGTH]}" if first else ""


class Report:
    """One JUnit file for steps that are not pytest's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.suite = ElementTree.Element("testsuite", name=path.stem)

    def add(self, name: str, succeeded: bool) -> None:
        case = ElementTree.SubElement(self.suite, "testcase", classname=self.path.stem, name=name)
        if not succeeded:
            ElementTree.SubElement(case, "failure", message="see the output")

    def write(self) -> None:
        ElementTree.ElementTree(self.suite).write(self.path)

    @classmethod
    def confirm(cls, path: Path, name: str, succeeded: bool) -> None:
        """Add a failure to the sum for a process that failed without reporting one: it crashed, or found no tests."""
        total = Total()
        if path.is_file():
            total.add(path)
        if not succeeded and not total.failed:
            report = cls(path.with_name(f"{path.stem}-process.xml"))
            report.add(f"{name} ended without a result (crashed, timed out or collected nothing)", False)
            report.write()


def fresh_folder(session: str) -> Path:
    """The folder of one session's reports, emptied."""
    folder = FOLDER / session
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def sum_folder(session: str = "") -> Total:
    """The sum over one session, or over all."""
    total = Total()
    for path in sorted((FOLDER / session).rglob("*.xml")):
        total.add(path)
    return total


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--record"]:
        _, session, result = arguments
        _record(session, succeeded=result == "passed")
        return 0
    total = sum_folder()
    for name in total.failures:
        print(f"FAILED {name}")
    print(total)
    return 1 if total.failed or not total.passed else 0


def _record(session: str, *, succeeded: bool) -> None:
    if not succeeded and sum_folder(session).failed:
        return
    (FOLDER / session).mkdir(parents=True, exist_ok=True)
    report = Report(FOLDER / session / "session.xml")
    report.add(session, succeeded)
    report.write()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
