"""
``python -m duly.spark.report``, for `spark-submit`.
"""

from duly.spark.program import run

run("report")
