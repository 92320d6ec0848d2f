"""The repository's machinery: one table of versions, arrows between packages, sessions by folder, summed results."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import check_tree
import environment
import import_contracts
import reports
import versions
from side_by_side import run_side_by_side

ROOT = Path(__file__).resolve().parents[2]
DISTRIBUTIONS = {dist.name: dist for dist in versions.distributions(ROOT)}
IMPORT_NAMES = {name: dist.versions.parent.name for name, dist in DISTRIBUTIONS.items()}


def write_tree(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def copy_machinery(root: Path) -> Path:
    """A copy of the tree's pyproject.toml and _versions.py files, its ci folder and its noxfile."""
    for dist in DISTRIBUTIONS.values():
        for path in (dist.pyproject, dist.versions):
            target = root / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    shutil.copytree(ROOT / "ci", root / "ci")
    shutil.copy(ROOT / "noxfile.py", root)
    (root / "tests").mkdir()
    return root


TOY = """\
[build-system]
requires = ["hatchling"]

[project]
name = "trunnion-toy"
version = "0"
requires-python = ""
dependencies = [
    "trunnion",
    "torch",
]
"""


class TestVersions:
    def test_every_distribution_agrees_with_the_table(self) -> None:
        assert set(DISTRIBUTIONS) >= {"trunnion", "trunnion-host", "trunnion-models", "trunnion-cpu"}
        assert versions.differing_files(ROOT) == []

    def test_a_changed_pin_is_reported_and_written(self, tmp_path: Path) -> None:
        root = copy_machinery(tmp_path)
        table = root / "ci" / "versions.toml"
        text = table.read_text()
        table.write_text(re.sub(r'(\[hardware\.cpu\]\ntorch = )"[^"]*"', r'\1"9.8.7"', text))
        differing = {str(path.relative_to(root)) for path in versions.differing_files(root)}
        assert differing == {"hardware/cpu/pyproject.toml", "hardware/cpu/trunnion_cpu/_versions.py"}
        text = versions.expected_files(root)[root / "hardware/cpu/pyproject.toml"]
        assert tomllib.loads(text)["project"]["dependencies"][-1] == "torch==9.8.7"

    def test_a_changed_version_reaches_every_distribution(self, tmp_path: Path) -> None:
        root = copy_machinery(tmp_path)
        table = root / "ci" / "versions.toml"
        table.write_text(re.sub(r'(\[trunnion\]\nversion = )"[^"]*"', r'\1"7.7.7"', table.read_text()))
        for path, text in versions.expected_files(root).items():
            assert "7.7.7" in text, path

    def test_an_unlisted_dependency_is_named(self, tmp_path: Path) -> None:
        root = write_tree(copy_machinery(tmp_path), {"hardware/toy/pyproject.toml": TOY.replace("torch", "surprise")})
        with pytest.raises(ValueError, match=r"hardware/toy/pyproject\.toml: 'surprise' is not in ci/versions\.toml"):
            versions.expected_files(root)

    def test_a_hardware_folder_becomes_an_extra(self, tmp_path: Path) -> None:
        root = write_tree(copy_machinery(tmp_path), {"hardware/toy/pyproject.toml": TOY})
        files = versions.expected_files(root)
        extras = tomllib.loads(files[root / "packages/trunnion/pyproject.toml"])["project"]["optional-dependencies"]
        assert {"cpu", "toy", "images"} <= set(extras)
        assert [requirement.split("==")[0] for requirement in extras["toy"]] == [
            "trunnion-toy",
            "trunnion-host",
            "trunnion-models",
        ]


class TestDistributions:
    @pytest.mark.parametrize("name", sorted(DISTRIBUTIONS))
    def test_declared_dependencies_are_the_imported_ones(self, name: str) -> None:
        dist = DISTRIBUTIONS[name]
        package = dist.versions.parent
        imported = {module for path in package.rglob("*.py") for module in imported_modules(path)}
        imported -= {package.name, *sys.stdlib_module_names}
        project = tomllib.loads(dist.pyproject.read_text())["project"]
        declared = {re.split(r"[\[=<>~!; ]", requirement)[0] for requirement in project.get("dependencies", ())}
        declared = {IMPORT_NAMES.get(word, word.removesuffix("-python").replace("-", "_")) for word in declared}
        # The command line starts the host where it is installed, images are opened by Pillow, and models without a port
        # are those of transformers: extras bring them.
        optional = {"trunnion_host", "PIL", "transformers"} if name == "trunnion" else set()
        # Frameworks that a bundle is exported from.
        if name == "trunnion-bundle":
            extras = project["optional-dependencies"].values()
            optional |= {re.split(r"[\[<>=]", requirement)[0] for extra in extras for requirement in extra}
        # Tools of kernels that nothing imports by itself; their modules are called by the first word.
        apart = environment.read_versions(ROOT)["apart"].get(name.removeprefix("trunnion-"), {})
        optional |= {distribution.partition("-")[0] for distribution in apart}
        assert imported - optional - declared == set(), "imported, not declared"
        # The host imports the common package from C++.
        siblings = set(IMPORT_NAMES.values())
        assert declared - imported - siblings == set(), "declared, never imported"

    @pytest.mark.parametrize("name", sorted(DISTRIBUTIONS))
    def test_entry_points_exist(self, name: str) -> None:
        project = tomllib.loads(DISTRIBUTIONS[name].pyproject.read_text())["project"]
        groups = [project.get("scripts", {}), *project.get("entry-points", {}).values()]
        for target in (target for group in groups for target in group.values()):
            module, _, attribute = target.partition(":")
            if find_spec(module.partition(".")[0]) is None:
                # Another hardware's environment has it; here it is only read.
                source = DISTRIBUTIONS[name].folder / f"{module.replace('.', '/')}.py"
                assert re.search(rf"^(class|def) {attribute}\b", source.read_text(), re.MULTILINE), target
                continue
            assert not attribute or hasattr(import_module(module), attribute), target


def imported_modules(path: Path) -> set[str]:
    """Top-level names of the absolute imports in a file, those inside functions included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
    return found


CLEAN = {
    "packages/trunnion/trunnion/__init__.py": "",
    "packages/trunnion/trunnion/contract.py": "",
    "packages/trunnion/trunnion/registry.py": "",
    "packages/trunnion/trunnion/interfaces/__init__.py": "import trunnion.contract\n",
    "packages/trunnion/trunnion/layers/__init__.py": "import trunnion.interfaces\n",
    "packages/trunnion/trunnion/ops/__init__.py": "",
    "packages/trunnion/trunnion/reference/__init__.py": "import trunnion.ops\n",
    "packages/trunnion/trunnion/runner/__init__.py": "",
    "packages/trunnion/trunnion/runner/buckets.py": "",
    "packages/trunnion/trunnion/runner/model_executor.py": "import trunnion.registry\n",
    "packages/trunnion/trunnion/cli/__init__.py": "",
    "packages/trunnion/trunnion/cli/generate.py": "import trunnion_host\n",
    "packages/trunnion-host/trunnion_host/__init__.py": "import trunnion.contract\n",
    "models/trunnion_models/__init__.py": "import trunnion.layers\n",
    "hardware/cpu/pyproject.toml": "",
    "hardware/cpu/trunnion_cpu/__init__.py": "import trunnion.reference\nimport trunnion.runner.buckets\n",
    "packages/trunnion-bundle/trunnion_bundle/__init__.py": "import torch\n",
    "hardware/toy/pyproject.toml": "",
    "hardware/toy/trunnion_toy/__init__.py": "import trunnion.layers\n",
}
VIOLATIONS = {
    "common imports hardware": ("packages/trunnion/trunnion/registry.py", "trunnion_toy"),
    "common imports models": ("packages/trunnion/trunnion/runner/buckets.py", "trunnion_models"),
    "common imports host": ("packages/trunnion/trunnion/runner/buckets.py", "trunnion_host"),
    "contract stands on config": ("packages/trunnion/trunnion/contract.py", "trunnion.ops"),
    "interfaces know a runner": ("packages/trunnion/trunnion/interfaces/__init__.py", "trunnion.runner"),
    "layers know the reference": ("packages/trunnion/trunnion/layers/__init__.py", "trunnion.reference"),
    "ops know layers": ("packages/trunnion/trunnion/ops/__init__.py", "trunnion.layers"),
    "models know a runner": ("models/trunnion_models/__init__.py", "trunnion.runner.buckets"),
    "models know hardware": ("models/trunnion_models/__init__.py", "trunnion_cpu"),
    "hardware knows other hardware": ("hardware/toy/trunnion_toy/__init__.py", "trunnion_cpu"),
    "hardware knows the executor": ("hardware/toy/trunnion_toy/__init__.py", "trunnion.runner.model_executor"),
    "hardware knows the registry": ("hardware/cpu/trunnion_cpu/__init__.py", "trunnion.registry"),
    "bundles know the common package": ("packages/trunnion-bundle/trunnion_bundle/__init__.py", "trunnion.contract"),
    "bundles know the host": ("packages/trunnion-bundle/trunnion_bundle/__init__.py", "trunnion_host"),
    "common imports bundles": ("packages/trunnion/trunnion/cli/generate.py", "trunnion_bundle"),
    "hardware knows bundles": ("hardware/cpu/trunnion_cpu/__init__.py", "trunnion_bundle"),
    "host knows models": ("packages/trunnion-host/trunnion_host/__init__.py", "trunnion_models"),
}


CLEAN_PACKAGES = ("packages/trunnion", "packages/trunnion-bundle", "packages/trunnion-host")


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    config = root / "contracts.ini"
    config.write_text(import_contracts.render(root))
    folders = (*CLEAN_PACKAGES, "models", "hardware/cpu", "hardware/toy")
    paths = [str(root / folder) for folder in folders]
    # The tree under test comes before what is installed.
    program = f"import sys; sys.path[:0] = {paths!r}; from importlinter.cli import lint_imports_command as run; run()"
    command = (sys.executable, "-c", program, "--no-cache", str(config))
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60)


class TestImportContracts:
    def test_the_allowed_arrows_pass(self, tmp_path: Path) -> None:
        result = lint_imports(write_tree(tmp_path, CLEAN))
        assert result.returncode == 0, result.stdout + result.stderr
        assert "0 broken" in result.stdout

    @pytest.mark.parametrize("what", VIOLATIONS)
    def test_a_wrong_arrow_breaks_a_contract(self, what: str, tmp_path: Path) -> None:
        name, target = VIOLATIONS[what]
        result = lint_imports(write_tree(tmp_path, {**CLEAN, name: CLEAN[name] + f"import {target}\n"}))
        assert result.returncode == 1, result.stdout + result.stderr
        assert "1 broken" in result.stdout


class TestSessions:
    def test_a_hardware_folder_brings_its_sessions(self, tmp_path: Path) -> None:
        root = write_tree(copy_machinery(tmp_path), {"hardware/toy/pyproject.toml": TOY})
        command = (sys.executable, "-m", "nox", "--list", "-f", str(root / "noxfile.py"))
        listed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
        for session in (
            "test-cpu",
            "wheels-cpu",
            "bench-cpu",
            "test-toy",
            "wheels-toy",
            "bench-toy",
            "generate",
            "lint",
        ):
            assert re.search(rf"^[*-] {session} ", listed, re.MULTILINE), session

    def test_missing_system_packages_are_named(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        assert environment.missing_system_packages() == []
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("CXX", raising=False)
        monkeypatch.setattr(environment.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
        monkeypatch.setattr(environment.sys, "version_info", (3, 10, 1))
        missing = environment.missing_system_packages()
        assert [item.split(" ")[0] for item in missing] == ["python", "g++", "python3.10-dev"]

    def test_only_what_changed_is_installed_again(self, tmp_path: Path) -> None:
        root = copy_machinery(tmp_path)
        source = root / "packages" / "trunnion-host" / "src" / "loop.cc"
        write_tree(root, {str(source): "int a;", "packages/trunnion/trunnion/config.py": "", "models/x.py": ""})

        def stamps() -> dict[str, str]:
            return {name: layer.stamp() for name, layer in environment.layers(root, "cpu").items()}

        def changed(before: Mapping[str, str]) -> set[str]:
            return {name for name, stamp in stamps().items() if before[name] != stamp}

        before = stamps()
        (root / "packages" / "trunnion" / "trunnion" / "config.py").write_text("x = 1")
        assert changed(before) == set()
        source.write_text("int b;")
        assert changed(before) == {"host"}
        pyproject = root / "models" / "pyproject.toml"
        pyproject.write_text(pyproject.read_text() + "\n")
        assert changed(before) == {"host", "packages"}
        table = root / "ci" / "versions.toml"
        table.write_text(re.sub(r'\npytest = "[^"]*"', '\npytest = "1.0"', table.read_text()))
        assert changed(before) == {"host", "packages", "tests"}

    def test_the_default_environment_has_no_library_of_another_hardware(self) -> None:
        """Whoever works on a CPU downloads none of them, and imports none where they are installed."""
        requirements = [word for layer in environment.layers(ROOT, "cpu").values() for word in layer.arguments]
        assert not [word for word in requirements if word.startswith(("flashinfer", "nvidia", "tilelang", "triton"))]
        code = (
            "import sys\n"
            "sys.modules.update(dict.fromkeys(('flashinfer', 'tilelang', 'triton')))\n"
            "import trunnion.cli.main, trunnion_cpu.hardware\n"
            "from trunnion import registry\n"
            "for family in registry.model_families():\n"
            "    __import__(f'{family.package}.model')\n"
            "print('trunnion_cuda' in sys.modules)\n"
        )
        result = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True)
        assert result.stdout == "False\n", result.stderr

    def test_a_toolkit_is_installed_where_its_command_is_missing(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        table = {"toolkit": {"toy": {"toyc": {"toy-compiler": "1.2"}}}}
        assert environment.missing_toolkits(table, "cpu") == []
        monkeypatch.setenv("PATH", str(tmp_path))
        assert environment.missing_toolkits(table, "toy") == [{"toy-compiler": "1.2"}]
        (tmp_path / "toyc").write_text("#!/bin/sh\n")
        (tmp_path / "toyc").chmod(0o755)
        assert environment.missing_toolkits(table, "toy") == []
        assert environment.layers(ROOT, "cpu")["toolkit"].arguments == ()

    def test_a_peer_that_cannot_be_installed_says_why(self, tmp_path: Path) -> None:
        log = tmp_path / "pip.log"
        assert environment.last_error(log) == "pip failed without a word"
        log.write_text("2030-01-01T00:00:00,000 ERROR: first\n2030-01-01T00:00:01,000 ERROR: No wheel for it \nnoise\n")
        assert environment.last_error(log) == "pip: No wheel for it"

    def test_what_cannot_share_an_environment_lies_apart_and_may_be_absent(self) -> None:
        """Only in the folder of the hardware that names it, and without what it depends upon."""
        assert environment.layers(ROOT, "cpu")["apart"].arguments == ()
        for name in environment.read_versions(ROOT)["apart"]:
            found = environment.layers(ROOT, name)
            options, pins = found["apart"].arguments[:4], found["apart"].arguments[4:]
            assert options == ("--upgrade", "--no-deps", "--target", f".nox/env-{name}/apart")
            assert pins and all("==" in pin for pin in pins)
            assert [layer.name for layer in found.values() if layer.is_optional] == ["apart"]


class TestSideBySide:
    def test_as_many_as_allowed_run_at_once(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        """Each of the first two ends only once it has seen the other; the third finds both gone."""
        wait = "import pathlib, sys, time; own, other = map(pathlib.Path, sys.argv[1:]); own.touch()\n"
        wait += "while not other.exists(): time.sleep(0.01)\nprint('seen'); sys.exit(own.name == 'b')"
        names = {name: str(tmp_path / name) for name in "abc"}
        pairs = {"a": "ab", "b": "ba", "c": "ca"}
        commands = {k: (sys.executable, "-c", wait, *(names[name] for name in pair)) for k, pair in pairs.items()}
        assert run_side_by_side(commands, {}, at_once=2) == {"a": True, "b": False, "c": True}
        lines = capfd.readouterr().out.splitlines()
        assert sorted(lines) == sorted(f"[{name}] {word}" for name in "abc" for word in ("started", "seen"))


class TestReports:
    SUITE = (
        "<testsuites><testsuite>"
        '<testcase name="a"/><testcase name="b"><failure/></testcase><testcase name="c"><error/></testcase>'
        '<testcase name="d"><skipped/></testcase><testcase name="e"/></testsuite></testsuites>'
    )

    def test_sum(self, tmp_path: Path) -> None:
        total = reports.Total()
        total.add(write_tree(tmp_path, {"r.xml": self.SUITE}) / "r.xml")
        assert str(total) == "2 passed, 2 failed, 1 skipped"

    @pytest.mark.parametrize(
        ("failure", "line"),
        [
            (
                '<failure message="\n  AssertionError: 3 != 4&#10;assert 3 == 4">a trace</failure>',
                ": AssertionError: 3 != 4",
            ),
            ("<error>\n\n RuntimeError: no device\nmore</error>", ": RuntimeError: no device"),
            (f'<failure message="{"x" * 300}"/>', ": " + "x" * 200),
            ("<failure/>", ""),
        ],
        ids=["message", "text", "long", "nothing"],
    )
    def test_a_failure_is_named_with_the_first_line_of_its_message(
        self,
        failure: str,
        line: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        suite = f'<testsuite><testcase classname="tests.unit.a" name="b">{failure}</testcase></testsuite>'
        write_tree(tmp_path, {"unit/r.xml": suite})
        monkeypatch.setattr(reports, "FOLDER", tmp_path)
        assert reports.main([]) == 1
        assert capsys.readouterr().out.splitlines() == [
            f"FAILED tests.unit.a::b{line}",
            "0 passed, 1 failed, 0 skipped",
        ]

    def test_a_process_without_a_report_counts_as_failed(self, tmp_path: Path) -> None:
        reports.Report.confirm(tmp_path / "crashed.xml", "tests/host", succeeded=False)
        reports.Report.confirm(tmp_path / "fine.xml", "tests/unit", succeeded=True)
        (written,) = tmp_path.glob("*.xml")
        total = reports.Total()
        total.add(written)
        assert (total.passed, total.failed) == (0, 1)
        assert "tests/host" in total.failures[0]


class TestTree:
    @pytest.mark.parametrize(
        "line",
        [
            "path = '/" + "tmp/model'",
            "see /" + "home/me/x",
            "--index-url https://download." + "pytorch.org/whl/cpu",
            "open('.." + "/shared/x')",
        ],
    )
    def test_forbidden_words(self, line: str) -> None:
        assert len(list(check_tree.find_forbidden(f"fine\n{line}\n"))) == 1

    def test_dead_links(self, tmp_path: Path) -> None:
        text = "[a](there.md) [b](there.md#part) [c](https://example.org/x)\n[d](gone.md#part)\n"
        page = write_tree(tmp_path, {"README.md": text, "there.md": ""}) / "README.md"
        assert [(number, words) for number, _, words in check_tree.find_dead_links(page, text)] == [(2, "gone.md")]

    @pytest.mark.parametrize("line", ["a/tmp/b", "https://arxiv.org/abs/2405.04434", "dist/cpu", "${HOME}/tmp/x"])
    def test_allowed_words(self, line: str) -> None:
        assert list(check_tree.find_forbidden(line)) == []
