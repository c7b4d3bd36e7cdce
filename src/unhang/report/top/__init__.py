"""A run as `unhang top` shows it: words, lines of text, and the application around them (`screen`), which alone needs Textual."""
