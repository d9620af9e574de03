"""The pages: one HTML document for all of them; the scripts in `static/` draw it from the REST API."""

from penstock.console.ui.document import install as install
