"""Who may do what: API tokens, their tags, and peers without a token."""
