"""
``python -m duly.spark.history``, for `spark-submit`.
"""

from duly.spark.program import run

run("history")
