"""
Far-future jobs: they wait in a Delta table, which costs disk, and come to the queue before they are due.
"""

from duly.extras import needed

with needed("duly.spark.horizon"):
    from duly.spark.horizon.writing import put_off

__all__ = ["put_off"]
