"""
One module for each pipeline, with a command of its name.
"""
