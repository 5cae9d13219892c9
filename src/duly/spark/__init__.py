"""
The data pipeline: jobs in bulk, through PySpark.

`session` gives a ready session, `register` makes the formats known to one of your own.
"""

from duly.spark.session import register, session

__all__ = ["register", "session"]
