"""How the stores keep what the contract promises."""
