"""From encoded bytes to labelled predictions. Knows nothing of gRPC."""
