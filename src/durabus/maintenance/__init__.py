"""Services that look after a store: ``durabus worker`` and a server run the same ones."""
