"""Tests on simulated devices; each simulation says what it does not prove."""
