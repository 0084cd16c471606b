"""The dashboard: the server renders its pages. They load one script and one stylesheet, nothing from other hosts."""
