"""
The file system behind a path: this machine's, or that of a URI.
"""

from __future__ import annotations

from pyarrow import fs


def filesystem(path: str) -> tuple[fs.FileSystem, str]:
    """
    Return the file system that a path or URI leads to, and the path in it.

    Raises:
        OSError, ValueError: There is none for such a URI.
    """
    if "://" in path:
        found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(path)
        return found
    return fs.LocalFileSystem(), path
