"""
The format `duly.events`: what happened to jobs, as a stream of rows.
"""
