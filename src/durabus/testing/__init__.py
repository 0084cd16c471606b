"""What durabus is tested with, for those who build stores and buses on it: a simulation, and a checker of histories."""
