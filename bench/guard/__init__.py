"""The regression guard: what a request and a gigabyte cost the broker, beside what they cost a plain socket."""
