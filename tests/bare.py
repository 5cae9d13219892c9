"""
A Python environment with duly and what it requires, and without any of its extras.
"""

from __future__ import annotations

import sysconfig
import venv
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

import duly


def bare_python(folder: Path) -> Path:
    """
    Make the environment in *folder*, of links to what is installed here, and return its Python.
    """
    venv.create(folder, symlinks=True)
    place = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", "venv", vars=place))
    for each in _required("duly"):
        for top in {Path(file).parts[0] for file in each.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(each.locate_file(top))
    (site / "duly.pth").write_text(f"{Path(duly.__file__).parent.parent}\n")
    return folder / "bin" / "python"


def _required(
    name: str, extras: tuple[str, ...] = (), found: dict[str, Distribution] | None = None
) -> list[Distribution]:
    """
    What a distribution requires, what that requires, and so on.
    """
    found = {} if found is None else found
    for line in distribution(name).requires or ():
        wanted = Requirement(line)
        asked = [{"extra": extra} for extra in ("", *extras)]
        if wanted.name in found or not (wanted.marker is None or any(map(wanted.marker.evaluate, asked))):
            continue
        try:
            found[wanted.name] = distribution(wanted.name)
        except PackageNotFoundError:
            continue  # there are no wheels of it for this system
        _required(wanted.name, tuple(wanted.extras), found)
    return list(found.values())
