"""
The known future: what is scheduled, against how fast it was worked off so far.
"""
