"""The bus that the demo's workers serve: ``durabus worker durabus.demo.worker:bus``."""

from durabus import EventBus
from durabus.demo.shop import BUS, LEASE, RETRY, Shop

bus = EventBus(name=BUS, retry=RETRY, lease=LEASE, concurrency=40, poll_interval=0.25)
Shop(bus)
