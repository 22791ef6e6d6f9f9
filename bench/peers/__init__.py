"""The same model behind other servers, under the same load: `python -m bench.peers`."""
