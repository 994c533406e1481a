"""The Flower app of a federation: the config, two lines of Python, and a README that says how to run them."""

from importlib.resources import files
from pathlib import Path

from fl_lightning import __version__
from fl_lightning.core.errors import MisconfigurationError

#: the Python package in the app
_PACKAGE = "federation"


def write_app(output: Path, name: str, config: str, num_clients: int | None) -> None:
    """Write a Flower app.

    Args:
        output: its folder, which must be empty or not exist yet.
        name: name of the config, which becomes the name of the run.
        config: the complete config, as YAML.
        num_clients: number of clients, for the README.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise MisconfigurationError(f"output={output} exists: set --output to a folder that does not, or remove it")
    if not output.resolve().parent.is_dir():
        raise MisconfigurationError(f"output={output}: the folder {output.parent} does not exist, create it first")
    package = output / _PACKAGE
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('"""The federation."""\n')
    (package / f"{name}.yaml").write_text(config)
    for side in ("server", "client"):
        (package / f"{side}.py").write_text(
            f'from fl_lightning.flower.apps import {side}_app\n\napp = {side}_app(__file__, "{name}.yaml")\n'
        )
    (output / "pyproject.toml").write_text(_project(name))
    templates = files("fl_lightning.flower") / "templates"
    values = {
        "name": name,
        "version": __version__,
        "clients": str(num_clients or "K"),
        "package": _PACKAGE,
        "folder": output.name,
    }
    for template in ("README.md", "nginx.conf", "node.yaml"):
        text = (templates / template).read_text()
        for key, value in values.items():
            text = text.replace(f"{{{{{key}}}}}", value)
        (output / template).write_text(text)


def _project(name: str) -> str:
    return f"""\
[project]
name = "{name.replace("_", "-").lower()}"
version = "1.0.0"
description = "A federation, written by fl-lightning flower"
license = "Apache-2.0"
dependencies = ["fl_lightning[flower]=={__version__}"]

[tool.flwr.app]
publisher = "local"

[tool.flwr.app.components]
serverapp = "{_PACKAGE}.server:app"
clientapp = "{_PACKAGE}.client:app"

[tool.flwr.app.config]
# further options of fl-lightning fit, such as --ckpt_path last
options = ""
"""
