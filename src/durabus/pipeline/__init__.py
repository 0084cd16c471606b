"""The data pipeline: the event log as Delta tables, and what can be read from them. Spark is used only here."""
