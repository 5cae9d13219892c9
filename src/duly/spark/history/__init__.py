"""
What happened to jobs, kept for good: every event once, in a Delta table by date and topic.
"""

from duly.extras import need

need("duly.spark.history", "pyspark", "pyarrow")
