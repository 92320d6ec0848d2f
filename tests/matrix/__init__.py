"""The matrix: every card of every model family, on one hardware package, fed in every way a host may feed it."""
