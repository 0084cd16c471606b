"""The command line: ``durabus --help``."""
