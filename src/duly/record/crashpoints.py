"""
Places where a test may have the process die.
"""


def crash_point(name: str) -> None:
    """
    Die here, if a test asked for it.
    """
