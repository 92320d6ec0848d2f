"""What can be done with this repository, one session each.

    nox -s generate -- "your prompt"    text from SmolLM2-135M on this machine's CPU, through the C++ host
    nox -s test-cpu                     the tests that every change must pass
    nox -s test-simulators              every model in eager, piecewise and full execution on a simulated device
    nox -s test-bundle                  bundles: export, check and the C++ server, on a simulated device and on this CPU
    nox -s mutate-sim                   planted faults, each of which must turn the simulated device's tests red
    nox -s lint                         style, types, the arrows between packages, versions
    nox -s versions                     write ci/versions.toml into every distribution
    nox -s nightly -- cpu               every test, card, planted fault and wheel of a hardware; without a name of all
    nox -s matrix -- cpu cuda           every card on some hardware, or all: dist/matrix/matrix.html and matrix.json
    nox -s bench-cpu -- --json FILE     what a step costs, and tokens per second
    nox -s bench-cpu -- --peers all     trunnion beside vLLM, llama.cpp, OpenVINO and transformers, in turn
    nox -s mutate-NAME                  as mutate-sim, for a hardware package that has planted faults of its own
    nox -s mutate-bundle                as mutate-sim, for bundles
    nox -s serve-bundle                 the tiny DLRM as a bundle, in the C++ server: gRPC on 8001, HTTP on 8000
    nox -s wheels-bundle                the wheel with the C++ server in dist/bundle/, installed, served from and asked
    nox -s bench-bundle -- --json FILE  the C++ server of bundles beside one in Python
    nox -s bench-exec -- --json FILE    the host's share of a replayed step, on devices that compute nothing meanwhile
    nox -s adapter-sweep -- --json FILE every causal model of transformers without a port: passed, refused or wrong;
                                        --hardware sim --execution full: the same in replayed graphs
    nox -s wheels-cpu                   wheels, constraints.txt and SHA256SUMS in dist/cpu/, installed and tried
    nox -s wheels-cuda -- --aot         also a wheel with kernels compiled ahead, in dist/cuda-aot/

Every folder under `hardware/` brings its own `test-<name>`, `wheels-<name>` and `bench-<name>`. Sessions of one
hardware share the environment `.nox/env-<name>`, which is filled once; delete the folder to start afresh. Arguments
after `--` of a test session go to pytest: `nox -s test-cpu -- tests/unit -k rope`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import nox
from nox.command import CommandFailed

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "ci"))

from environment import BUNDLE, Environment, PeerEnvironment, read_versions  # noqa: E402
from reports import FOLDER, Report, fresh_folder, sum_folder  # noqa: E402

nox.needs_version = ">=2024.3.2"
nox.options.sessions = ["lint", "test-cpu"]
nox.options.error_on_external_run = True

DEFAULT_HARDWARE = "cpu"
DEFAULT_PROMPT = "What is the capital of France?"
HARDWARE = sorted(path.parent.name for path in (ROOT / "hardware").glob("*/pyproject.toml"))
MATRIX = "tests/matrix"
PER_HARDWARE = (MATRIX, "tests/conformance")
"""Suites that take `--hardware NAME`."""
SIMULATED = "tests/simulators/trunnion_sim"
"""A hardware package over the capture simulator; it is named by its folder and never installed."""
WHEELS = {BUNDLE: "packages/trunnion-bundle/wheel_tests"}
"""Tests of built wheels, where they are not those of a hardware."""
APART = (*PER_HARDWARE, "tests/wheels", "tests/mutations", "tests/simulators")
"""Folders under tests/ that need something built, or a session of their own."""
COMMON = (*sorted(f"tests/{path.name}" for path in (ROOT / "tests").iterdir() if path.is_dir()), "models/tests")
BUNDLE_TESTS = "packages/trunnion-bundle/tests"
TRAFFIC = [
    f"{BUNDLE_TESTS}/native/test_{name}.py"
    for name in ("embed", "malformed", "native_operators", "policy", "protocol", "reload", "serving_time")
]
"""Tests of the C++ of bundles that need no torch, and so also run on programs with a sanitizer."""
OUTCOMES = "matrix.json"
"""What became of every cell of the matrix, in the folder of a session's reports."""
QUICK = ("-m", "not nightly")
THREADS = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
"""Test tensors are tiny: more threads would only wait for each other."""


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Check style, types, versions and the arrows between packages."""
    env = Environment(session, DEFAULT_HARDWARE).prepare("lint")
    contracts = Path(session.create_tmp()) / "import_contracts.ini"
    # Packages of other hardware, and bundles, are read, and neither installed nor imported.
    folders = (
        *(ROOT / "hardware").glob("*"),
        *(ROOT / "hardware").glob("*/simulator"),
        ROOT / "packages/trunnion-bundle",
    )
    sources = {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    steps = {
        "ruff check": ("ruff", "check", "."),
        "ruff format": ("ruff", "format", "--check", "."),
        "versions": ("python", "ci/versions.py", "--check"),
        "tree": ("python", "ci/check_tree.py"),
        "mypy": ("mypy", "-p", "trunnion.interfaces", "-m", "trunnion.contract"),
        "import contracts": ("python", "ci/import_contracts.py", "--write", str(contracts)),
        "imports": ("lint-imports", "--no-cache", str(contracts)),
    }
    report = Report(fresh_folder("lint") / "lint.xml")
    for name, command in steps.items():
        report.add(name, _succeeds(env, *command, variables=sources))
    report.write()
    _finish(session, "lint")


@nox.session(venv_backend="none")
def versions(session: nox.Session) -> None:
    """Write ci/versions.toml into every pyproject.toml and _versions.py."""
    session.run(sys.executable, "ci/versions.py", external=True)


@nox.session(venv_backend="none")
def generate(session: nox.Session) -> None:
    """Answer a prompt: `nox -s generate -- "your prompt"`; options of `trunnion generate` may follow."""
    env = Environment(session, DEFAULT_HARDWARE).prepare("checkpoints")
    env.run("trunnion", "generate", "--model", "smollm2", *(session.posargs or [DEFAULT_PROMPT]), log=False)


@nox.session(venv_backend="none")
def nightly(session: nox.Session) -> None:
    """Run every test, card, planted fault and wheel of all hardware, for hours: `-- cpu cuda` picks some."""
    if unknown := sorted(set(session.posargs) - set(HARDWARE)):
        session.error(f"no hardware {', '.join(unknown)}; choices: {', '.join(HARDWARE)}")
    folder = fresh_folder("nightly")
    for hardware in session.posargs or HARDWARE:
        env = Environment(session, hardware).prepare("checkpoints", "tests", "lint", "wheels", "toolkit", "apart")
        reports, simulated = folder / hardware, folder / f"{hardware}-simulated"
        reports.mkdir()
        _pytest(env, _suites(hardware), reports)
        if hardware == DEFAULT_HARDWARE:
            simulated.mkdir()
            _pytest(env, [MATRIX, "tests/simulators"], simulated, hardware=SIMULATED)
            _pytest(env, ["tests/mutations"], simulated)
        if patches := _mutations(hardware):
            _pytest(env, ["tests/mutations"], reports, "--patches", patches)
        _build_and_try_wheels(env, reports)
    _write_matrix(session, folder, is_whole=not session.posargs)
    _finish(session, "nightly")


@nox.session(venv_backend="none")
def matrix(session: nox.Session) -> None:
    """Write dist/matrix/ and README's table from every card on all hardware: `-- cpu cuda` picks, `--quick` is short.

    README's table is written of the whole only. With `--page` nothing is run: the page is made of what the last
    sessions left, whichever they were.
    """
    chosen = [word for word in session.posargs if not word.startswith("-")]
    options = [word for word in session.posargs if word.startswith("-")]
    choices = (*HARDWARE, "sim")
    if unknown := sorted({*chosen} - {*choices} | {*options} - {"--quick", "--page"}):
        session.error(f"unknown: {', '.join(unknown)}; choices: {', '.join(choices)}, --quick, --page")
    if "--page" in options:
        _write_matrix(session, FOLDER, is_whole=False)
        return
    folder = fresh_folder("matrix")
    for name in chosen or choices:
        env = Environment(session, DEFAULT_HARDWARE if name == "sim" else name)
        env.prepare("checkpoints", "tests", "lint", "toolkit", "apart")
        (folder / name).mkdir()
        quick = QUICK if "--quick" in options else ()
        _pytest(env, [MATRIX], folder / name, *quick, hardware=SIMULATED if name == "sim" else "")
    _write_matrix(session, folder, is_whole=not session.posargs)
    _finish(session, "matrix")


@nox.session(name="test-simulators", venv_backend="none")
def test_simulators(session: nox.Session) -> None:
    """Run the capture simulator's tests, and the matrix on it: a simulation, which proves no real device."""
    env = Environment(session, DEFAULT_HARDWARE).prepare("checkpoints", "tests")
    reports = fresh_folder("test-simulators")
    _pytest(env, [MATRIX, "tests/simulators"], reports, *QUICK, hardware=SIMULATED)
    _finish(session, "test-simulators")


@nox.session(name="test-bundle", venv_backend="none")
def test_bundle(session: nox.Session) -> None:
    """Run the tests of packages/trunnion-bundle, whose C++ is built first where it changed; `-- ARGS` go to pytest.

    `-- --sanitize address` (or `thread`) runs the tests that send traffic on programs that are instrumented.
    """
    env = Environment(session, BUNDLE).prepare()
    # Here rather than in a test, whose time is limited.
    env.run("python", f"{BUNDLE_TESTS}/native/native_build.py", *session.posargs)
    if session.posargs:
        is_named = any(BUNDLE_TESTS in argument for argument in session.posargs)
        traffic = () if is_named or "--sanitize" not in session.posargs else TRAFFIC
        env.run("python", "-m", "pytest", *session.posargs, *traffic, env=THREADS)
        return
    _pytest(env, [BUNDLE_TESTS], fresh_folder("test-bundle"), *QUICK)
    _finish(session, "test-bundle")


@nox.session(name="serve-bundle", venv_backend="none")
def serve_bundle(session: nox.Session) -> None:
    """Export the tiny DLRM to dist/bundles, build the C++ server and serve it; options of the server may follow."""
    env = Environment(session, BUNDLE).prepare()
    folder = ROOT / "dist" / "bundles" / "dlrm" / "1"
    if not folder.exists():
        env.run("python", "-m", "trunnion_bundle.examples.dlrm", str(folder))
    programs = env.run("python", f"{BUNDLE_TESTS}/native/native_build.py", silent=True).strip()
    server = str(Path(programs) / "trunnion-serve-bundle")
    session.run(server, str(folder.parents[1]), *session.posargs, external=True)


@nox.session(name="bench-bundle", venv_backend="none")
def bench_bundle(session: nox.Session) -> None:
    """Measure the C++ server of bundles beside one in Python: `-- --json FILE`."""
    env = Environment(session, BUNDLE).prepare()
    env.run("python", "packages/trunnion-bundle/bench", *session.posargs)


@nox.session(name="wheels-bundle", venv_backend="none")
def wheels_bundle(session: nox.Session) -> None:
    """Write the wheel of bundles, with the server in it, to dist/bundle/; install it, export, serve and ask."""
    env = Environment(session, BUNDLE).prepare("wheels")
    _build_and_try_wheels(env, fresh_folder("wheels-bundle"))
    _finish(session, "wheels-bundle")


@nox.session(name="mutate-sim", venv_backend="none")
def mutate_sim(session: nox.Session) -> None:
    """Plant each fault of tests/mutations in a copy, and see that the test it names turns red."""
    env = Environment(session, DEFAULT_HARDWARE).prepare("checkpoints", "tests")
    _pytest(env, ["tests/mutations"], fresh_folder("mutate-sim"), *session.posargs)
    _finish(session, "mutate-sim")


@nox.session(name="mutate-bundle", venv_backend="none")
def mutate_bundle(session: nox.Session) -> None:
    """Plant each fault of bundles in a copy, build what it touches, and see that the test it names turns red."""
    env = Environment(session, BUNDLE).prepare()
    # What lies above has fixtures that need packages which bundles do not.
    patches = ("--confcutdir=tests/mutations", f"--patches={BUNDLE_TESTS}/mutations", *session.posargs)
    _pytest(env, ["tests/mutations"], fresh_folder("mutate-bundle"), *patches)
    _finish(session, "mutate-bundle")


@nox.session(name="bench-exec", venv_backend="none")
def bench_exec(session: nox.Session) -> None:
    """Measure the host's share of a replayed step wherever that is timed: `-- --json FILE`; `-- cpu ...` picks some."""
    timed = [name for name in HARDWARE if (ROOT / "hardware" / name / "bench" / "exec.py").is_file()]
    chosen = list(itertools.takewhile(lambda argument: not argument.startswith("-"), session.posargs))
    if unknown := sorted(set(chosen) - set(timed)):
        session.error(f"no hardware {', '.join(unknown)} has bench/exec.py; choices: {', '.join(timed)}")
    parser = argparse.ArgumentParser(prog="bench-exec", description="Other options go to each bench.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures of all here, by hardware")
    options, others = parser.parse_known_args(session.posargs[len(chosen) :])
    found = {}
    for name in chosen or timed:
        env = Environment(session, name).prepare("checkpoints", "tests")
        figures = Path(session.create_tmp()) / f"{name}.json"
        env.run("python", f"hardware/{name}/bench", "--only", "exec", "--json", str(figures), *others)
        found[name] = json.loads(figures.read_text())
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


@nox.session(name="adapter-sweep", venv_backend="none")
def adapter_sweep(session: nox.Session) -> None:
    """Run every causal model of transformers, tiny and random, on the adapter: `-- --only TYPE --json FILE`.

    `--hardware sim --execution piecewise` (or `full`) replays every step on the capture simulator; `--quick` is short.
    """
    env = Environment(session, DEFAULT_HARDWARE).prepare("checkpoints", "tests")
    env.run("python", "-m", "tests.adapter.sweep", *session.posargs)


def define_hardware_sessions(hardware: str) -> None:
    """The sessions of one folder under hardware/."""

    @nox.session(name=f"test-{hardware}", venv_backend="none")
    def test(session: nox.Session) -> None:
        env = Environment(session, hardware).prepare("checkpoints", "tests", "lint", "toolkit", "apart")
        reports = fresh_folder(f"test-{hardware}")
        if session.posargs:
            plugin, variables = _simulator(hardware)
            env.run("python", "-m", "pytest", *plugin, *session.posargs, env=variables)
            return
        _pytest(env, _suites(hardware), reports, *QUICK)
        _finish(session, f"test-{hardware}")

    test.__doc__ = f"Run the tests that every change must pass, on {hardware}."

    if folder := _mutations(hardware):

        @nox.session(name=f"mutate-{hardware}", venv_backend="none")
        def mutate(session: nox.Session) -> None:
            env = Environment(session, hardware).prepare("checkpoints", "tests", "lint", "toolkit", "apart")
            patches = ("--patches", folder, *session.posargs)
            _pytest(env, ["tests/mutations"], fresh_folder(f"mutate-{hardware}"), *patches)
            _finish(session, f"mutate-{hardware}")

        mutate.__doc__ = f"Plant each fault of {hardware} in a copy, and see that the test it names turns red."

    @nox.session(name=f"wheels-{hardware}", venv_backend="none")
    def wheels(session: nox.Session) -> None:
        env = Environment(session, hardware).prepare("checkpoints", "tests", "wheels", "toolkit")
        _build_and_try_wheels(env, fresh_folder(f"wheels-{hardware}"), *session.posargs)
        _finish(session, f"wheels-{hardware}")

    wheels.__doc__ = f"Write the wheels for {hardware} to dist/{hardware}/, install them and generate."

    @nox.session(name=f"bench-{hardware}", venv_backend="none")
    def bench(session: nox.Session) -> None:
        folder = ROOT / "hardware" / hardware / "bench"
        if not (folder / "__main__.py").is_file():
            session.error(f"hardware/{hardware} has no bench/__main__.py")
        env = Environment(session, hardware).prepare("checkpoints", "tests")
        env.run("python", str(folder), *session.posargs, *_peers(session, hardware))

    bench.__doc__ = f"Measure {hardware}: `-- --json FILE` writes the figures."


def _peers(session: nox.Session, hardware: str) -> list[str]:
    """Where the engines are that `--peers` asks a bench for, each in an environment of its own, or why they are not."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--peers", nargs="?", const="")
    asked = parser.parse_known_args(session.posargs)[0].peers
    known = read_versions(ROOT).get("peers", {}).get(hardware, {})
    if asked is None or {"-h", "--help"} & {*session.posargs}:
        return []
    found = []
    # Names that are not known the bench refuses, with the choices.
    for name in known if asked == "all" else [name for name in asked.split(",") if name in known]:
        env = PeerEnvironment(session, hardware, name)
        reason = env.fill()
        found += ["--missing", f"{name}={reason}"] if reason else ["--python", f"{name}={env.python}"]
    return found


def _suites(hardware: str) -> list[str]:
    """Test folders of one hardware; the common ones run on the embedded default only."""
    common = [folder for folder in COMMON if folder not in APART] if hardware == DEFAULT_HARDWARE else []
    folders = [*PER_HARDWARE, *common, f"hardware/{hardware}/tests"]
    return [folder for folder in folders if (ROOT / folder).is_dir()]


def _mutations(hardware: str) -> str:
    """The folder of the faults that are planted in a package of its own, or ""."""
    folder = f"hardware/{hardware}/tests/mutations"
    return folder if any((ROOT / folder).glob("*.patch")) else ""


def _pytest(env: Environment, folders: Sequence[str], reports: Path, *options: str, hardware: str = "") -> None:
    """One process per folder, side by side; the result of each is the report it leaves, and none is a failure."""
    plugin, variables = _simulator(env.hardware)
    commands, paths = {}, {}
    for folder in folders:
        paths[folder] = reports / f"{folder.replace('/', '-')}.xml"
        name = ("--hardware", hardware or env.hardware) if folder in PER_HARDWARE else ()
        report = [f"--junitxml={paths[folder]}", "-o", f"junit_suite_name={folder}"]
        if folder == MATRIX:
            report.append(f"--outcomes={reports / OUTCOMES}")
        commands[folder] = ("python", "-m", "pytest", "-q", folder, *name, *plugin, *options, *report)
    for folder, succeeded in env.run_side_by_side(commands, variables).items():
        Report.confirm(paths[folder], folder, succeeded)


def _write_matrix(session: nox.Session, reports: Path, *, is_whole: bool) -> None:
    """The page of all outcomes under `reports`, and README's table if they are of everything."""
    found = sorted(reports.rglob(OUTCOMES), key=lambda path: path.stat().st_mtime)
    if not found:
        session.error("no session has left outcomes of the matrix: run `nox -s matrix`")
    command = [sys.executable, "ci/matrix_report", *map(str, found), "--out", "dist/matrix"]
    session.run(*command, *(("--summary", "README.md") if is_whole else ()), external=True)


def _simulator(hardware: str) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """Options and variables that let a package's simulated device stand in where there is no real one."""
    folder = ROOT / "hardware" / hardware / "simulator"
    package = f"{hardware}_simulator"
    if not (folder / package / "plugin.py").is_file():
        return (), THREADS
    return ("-p", f"{package}.plugin"), {**THREADS, "PYTHONPATH": str(folder)}


def _build_and_try_wheels(env: Environment, reports: Path, *arguments: str) -> None:
    """Build, then install into fresh environments what was built, in which nothing is simulated."""
    env.run("python", "ci/wheels.py", env.hardware, *arguments)
    tests, report = WHEELS.get(env.hardware, "tests/wheels"), reports / "tests-wheels.xml"
    folders = ["--dist", f"dist/{env.hardware}"]
    if arguments:
        folders += ["--ahead", f"dist/{env.hardware}-aot"]
    command = ("python", "-m", "pytest", "-q", tests, *folders, f"--junitxml={report}")
    # What a hardware package adds to torch may be unable to load where it is built.
    variables = {**THREADS, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    Report.confirm(report, tests, _succeeds(env, *command, variables=variables))


def _succeeds(env: Environment, *command: str, variables: Mapping[str, str] = MappingProxyType({})) -> bool:
    try:
        env.run(*command, env=variables)
    except CommandFailed:
        return False
    return True


def _finish(session: nox.Session, name: str) -> None:
    """Print the sum of a session's reports, and fail if something in them did."""
    total = sum_folder(name)
    session.log(f"{name}: {total}")
    if total.failed:
        session.error(f"{name}: {total.failed} failed: {'; '.join(total.failures[:10])}")


for _hardware in HARDWARE:
    define_hardware_sessions(_hardware)
