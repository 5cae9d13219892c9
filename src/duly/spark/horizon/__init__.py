"""
Far-future jobs: they wait in a Delta table, which costs disk, and come to the queue before they are due.
"""

from duly.spark.horizon.writing import put_off

__all__ = ["put_off"]
