"""
``python -m duly.spark.reconcile``, for `spark-submit`.
"""

from duly.spark.program import run

run("reconcile")
