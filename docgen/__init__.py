"""Reference pages generated from the code (`python -m docgen`), and the hooks that `make docs` builds the site with."""
