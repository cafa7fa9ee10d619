"""The benchmark of `qcore.linear`."""
