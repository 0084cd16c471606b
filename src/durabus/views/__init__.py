"""The one read service: typed views of events, workers and activity for CLI, dashboard, demo and metrics."""
