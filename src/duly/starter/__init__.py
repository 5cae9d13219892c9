"""
The files that `duly init` writes, as they are written.
"""
