"""
``python -m duly.spark.replay``, for `spark-submit`.
"""

from duly.spark.program import run

run("replay")
