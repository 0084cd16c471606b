"""NATS JetStream: one stream is the log, and its public part is anybody's to read."""
