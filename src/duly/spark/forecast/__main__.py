"""
``python -m duly.spark.forecast``, for `spark-submit`.
"""

from duly.spark.program import run

run("forecast")
