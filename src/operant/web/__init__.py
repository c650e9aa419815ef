"""The local web app: it shows and records, and holds no formula.

`operant serve` starts it (`operant.web.serving`). The process that answers requests imports nothing heavy; what is
computed or read from runs is asked of worker processes (`operant.web.workers`), which call the library's own functions.
"""
