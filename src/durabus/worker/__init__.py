"""The flow of work, one file a step: loop → dispatch → execution → settlement."""
