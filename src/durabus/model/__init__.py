"""The values that every part of durabus shares. They are frozen, and nothing here does I/O."""
