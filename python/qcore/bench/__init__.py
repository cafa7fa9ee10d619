"""`qcore bench`: qcore's operators timed beside other libraries' in one interleaved run, with the machine's limits.

An operator is a folder with its workloads, qcore's own contenders, its peers (a file per library and kind) and its
summary, and a row in operators.py. Everything else here serves them all.
"""
