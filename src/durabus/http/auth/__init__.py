"""Access to the API: tokens, the tags and buses they are limited to, and peers without a token."""
