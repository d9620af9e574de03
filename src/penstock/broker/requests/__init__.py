"""From a frame to its response: decoding, which handler answers, limits on what is under way, encoding."""
