"""What the engine and the decoders can do without gRPC in front of them; see `bench.without_grpc.__main__`."""
