"""The documents of the HTTP API. Server and client share them; no web framework is imported here."""
