"""Why is my GPU idle? `python -m bench.doctor` looks layer by layer and names one disease."""
