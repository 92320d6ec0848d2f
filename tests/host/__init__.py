"""Hosts in C and C++ that drive executors through contract.h."""
