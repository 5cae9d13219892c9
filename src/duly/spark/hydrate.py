"""
`duly pipeline hydrate` as a program, for `spark-submit` and `python -m`.
"""

from duly.spark.program import run

if __name__ == "__main__":
    run("hydrate")
