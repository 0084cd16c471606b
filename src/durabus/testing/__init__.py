"""The tools that test durabus: conformance tests for stores, a simulation, a checker of histories, real servers."""
