"""Show what `experiments/` holds on the pages, by the paths that lead there in the repository; and the icon."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pictures and raw results of the experiments, and the icon of the web app, to what is built."""
    experiments = Path(config.config_file_path).parent / "experiments"
    for path in sorted([*experiments.iterdir(), *experiments.glob("scores/*.json")]):
        if path.suffix in (".png", ".json"):
            place = f"experiments/{path.relative_to(experiments).as_posix()}"
            file = File.generated(config, f"../{place}", abs_src_path=str(path), inclusion=InclusionLevel.INCLUDED)
            file.dest_uri = place
            files.append(file)
    icon = Path(config.config_file_path).parent / "src" / "operant" / "web" / "static" / "icon.svg"
    files.append(File.generated(config, "icon.svg", abs_src_path=str(icon)))
    return files
