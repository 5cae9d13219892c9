"""
`duly pipeline work` as a program, for `spark-submit` and `python -m`.
"""

from duly.spark.program import run

run("work")
