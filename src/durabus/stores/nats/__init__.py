"""NATS JetStream: one stream is the log. Any program may read its public lane."""
