"""`trunnion port new`: the scaffold of a port, and what is left to do."""

from __future__ import annotations

import json
from pathlib import Path

from trunnion import registry
from trunnion.checkup.lines import report_lines
from trunnion.cli.check import as_object
from trunnion.cli.messages import UsageProblem
from trunnion.porting.new import NewPort, left_to_do, new_port
from trunnion.porting.scaffold import TO_WRITE

EXIT_LEFT = 1
NOT_IN_TENSORS = (
    "no tensor tells: an offset of 1 in norms, the scale of attention, multipliers and caps, which pairs a rope turns, "
    "gates and layers in parallel; see trunnion compare"
)


def port_new(family: str, *, checkpoint: Path, out: Path | None, as_json: bool) -> int:
    """Write the folder and print its report; 1 if the checkpoint does not run with it yet."""
    if not checkpoint.is_dir():
        raise UsageProblem(
            f"--from {str(checkpoint)!r} is no folder; give one with config.json, and *.safetensors or their index"
        )
    folder = (out if out is not None else Path(family)).expanduser()
    made = new_port(family, checkpoint, folder, registry.hardware("cpu"))
    print(json.dumps(_as_object(made)) if as_json else "\n".join(_lines(made, checkpoint)))
    return 0 if made.report.runs else EXIT_LEFT


def _lines(made: NewPort, checkpoint: Path) -> list[str]:
    return [
        f"port            {made.folder}: {', '.join(sorted(path.name for path in made.folder.glob('*.py')))}",
        *(f"{'':<15} {line}" for line in (*left_to_do(made), NOT_IN_TENSORS)),
        *report_lines(made.report),
        *(f"{'next' if number == 0 else '':<15} {line}" for number, line in enumerate(_next(made, checkpoint))),
    ]


def _next(made: NewPort, checkpoint: Path) -> list[str]:
    """Commands, in the order in which they are of use."""
    check = f"trunnion check {checkpoint} --port {made.folder}"
    run = [
        f"trunnion compare {checkpoint} --port {made.folder}    the first difference, if transformers has the family",
        f'trunnion generate --port {made.folder} --model {checkpoint} --raw "text"',
    ]
    marked = f"grep -n '{TO_WRITE}' {made.folder}/model.py    what is marked"
    return (
        run if made.report.runs else [*([marked] if made.choices.unwritten else []), f"{check}    until it runs", *run]
    )


def _as_object(made: NewPort) -> dict[str, object]:
    return {"folder": str(made.folder), "left_to_do": left_to_do(made), "check": as_object(made.report)}
