"""What every store promises.

The docstrings of these protocols are binding. Every test of ``durabus.testing.conformance`` quotes the sentence that
it proves.
"""

from durabus.store.contract import EventStore
from durabus.store.features import Features

__all__ = ["EventStore", "Features"]
