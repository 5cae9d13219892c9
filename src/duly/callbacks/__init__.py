"""
Callbacks: jobs that are run by POSTing them, and what receivers need to trust them.
"""

from duly.callbacks.signature import WrongSignature, new_secret, sign, verify

__all__ = ["WrongSignature", "new_secret", "sign", "verify"]
