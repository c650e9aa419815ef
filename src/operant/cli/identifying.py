"""`operant identify`."""

from pathlib import Path

from operant.cli.flags import Parser
from operant.cli.output import number, print_json, require_writable, table
from operant.runtime.files import replace_durably
from operant.runtime.run_paths import location


def identify(arguments: list[str]) -> int:
    """Estimate the parameters of a task's simulator from recorded trajectories."""
    about = "Estimate the parameters of a task's simulator from trajectories of a real system, with intervals."
    parser = Parser("operant identify", description=about)
    parser.add_argument(
        "task", metavar="TASK", help="a task with tensor environments, such as Pendulum-v1, or of MuJoCo"
    )
    parser.add_argument("file", metavar="FILE.npz", type=Path, help="arrays observations, actions and lengths")
    parser.add_argument(
        "--parameters", required=True, metavar="A,B", help="names of the parameters, separated by commas"
    )
    parser.add_argument(
        "--window", type=int, help="number of actions between estimates of the state (default: 10, or 5 with MuJoCo)"
    )
    parser.add_argument("--output", type=Path, help="output file in TOML for operant train --randomize")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    options = parser.parse_args(arguments)
    if options.output is not None and options.output.exists():
        raise ValueError(f"{options.output} already exists: choose another file")
    if options.output is not None:
        require_writable(options.output, "--output")
    from operant.explore import Trajectories
    from operant.explore import identify as posterior_of
    from operant.tensors import floats

    trajectories, names = Trajectories.load(options.file), options.parameters.split(",")
    estimates = posterior_of(options.task, trajectories, names, window=options.window)
    estimate, interval = estimates.estimate, estimates.interval()
    if options.output is not None:
        replace_durably(options.output, estimates.toml().encode())
    if options.json:
        facts = {"task": options.task, "episodes": len(trajectories.lengths), "steps": int(trajectories.lengths.sum())}
        print_json({**facts, "estimate": estimate, "interval": interval, "noise": floats(estimates.noise)})
        return 0
    rows = [["parameter", "nominal", "estimate", "95 % interval"]]
    for name in names:
        low, high = interval[name]
        rows.append([name, number(estimates.nominal[name]), number(estimate[name]), f"[{number(low)}, {number(high)}]"])
    print(table(rows, "<>>>"))
    noise = ", ".join(map(number, floats(estimates.noise)))
    print(f"\nResidual noise, by component of the observations: {noise}")
    if options.output is not None:
        path = location(options.output)
        print(f"\nwritten: {path}\n\nNext:\n  operant train sac {options.task} --randomize {path}")
    return 0
