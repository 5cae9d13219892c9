"""
The queue over HTTP, for producers that cannot reach its server: what `Duly("https://…")` speaks to.
"""
