"""
Background duties: one per file, each with `run_once()`, all run by a crew.
"""
