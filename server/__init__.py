"""gRPC in front of the pipeline."""
