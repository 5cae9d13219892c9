"""
Processes that are started here and do not outlive the one that started them.
"""
