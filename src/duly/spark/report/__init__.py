"""
Reports over the history: was it on time, what failed, when was it busy.
"""

from duly.extras import need

need("duly.spark.report", "pyspark", "pyarrow")
