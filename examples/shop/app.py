"""The shop of `durabus demo` as a program of your own. Run these in this folder, each in its own terminal:

    durabus worker app:bus        a worker; start two, and kill one with kill -9
    python orders.py 1000         places 1,000 orders
    durabus stats --bus shop      shows what is done and what is left
    durabus dlq list --bus shop   shows the orders that cannot be completed

The events and handlers are in durabus/demo/shop.py, which uses public names only: copy it here to change them.
"""

from durabus import EventBus
from durabus.demo.shop import BUS, LEASE, RETRY, Shop

bus = EventBus(name=BUS, retry=RETRY, lease=LEASE)
Shop(bus)
