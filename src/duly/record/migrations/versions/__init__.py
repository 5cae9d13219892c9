"""
One step each, in the order that `down_revision` says.
"""
