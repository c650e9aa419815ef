"""Local web app of operant.

`operant serve` starts it (`operant.web.serving`). The server process imports nothing heavy; worker processes
(`operant.web.workers`) compute and read runs with the library's own functions.
"""
