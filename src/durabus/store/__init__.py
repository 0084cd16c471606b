"""What a store promises. The docstrings of these protocols are the law; ``durabus.testing.conformance``
quotes and tests it.
"""

from durabus.store.contract import EventStore
from durabus.store.features import Features

__all__ = ["EventStore", "Features"]
