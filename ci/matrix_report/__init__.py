"""The table of every card on every hardware: read from what the matrix's tests leave, for people and programs."""
