"""
Batch handlers at work: claim many jobs, run them as one DataFrame, store an outcome for each.
"""
