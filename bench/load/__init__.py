"""`make bench`: the load test."""
