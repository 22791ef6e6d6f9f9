"""The load test as one HTML file."""
