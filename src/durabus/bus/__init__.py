"""The event bus: publish and emit, subscribe, start, shut down."""
