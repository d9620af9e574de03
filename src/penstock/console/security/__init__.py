"""The users of the console and what they may see and do: roles, sessions, tokens, the guard before every request."""
