"""Chaos: mixed calls while processes are killed, and what must hold all the while."""
