"""The incident, rung by rung: `python -m bench.ladder`."""
